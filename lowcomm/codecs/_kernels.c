/* The inner loops of block-wise codecs, in one pass over memory, with the same bytes as the numpy
 * code in int8.py, int4.py and fp4.py.
 *
 * Each operation rounds once: the build forbids contraction (-ffp-contract=off), and nothing here
 * depends on the order of a sum. A block is 256 fp32 values; a record is a little-endian fp32 scale
 * and the packed codes. Must NOT be called with overlapping arrays, nor handle a last block that is
 * not full (blocks.py pads it).
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(ONE_CPU)
/* For tests and benchmarks: the loops for one instruction set, as a string. */
#define FOR_EACH_CPU __attribute__((target(ONE_CPU), noinline))
#elif defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
/* The loader picks the version for this CPU; all give the same bits. */
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU __attribute__((noinline)) /* Like clones: inlined, GCC 12 vectorises less. */
#endif
#define INLINE static inline __attribute__((always_inline))

enum { BLOCK = 256 };

#define MAGNITUDE UINT32_C(0x7FFFFFFF)
#define INFINITY_WORD UINT32_C(0x7F800000)
#define SCALED_MIN_WORD UINT32_C(0x0D800000) /* 2**-100: smaller blocks are sent as zeros. */
#define NAN_WORD UINT32_C(0x7FC00000)
#define MANTISSA_END 12582912.0f /* 1.5 x 2**23: adding it rounds to an integer, half to even. */

INLINE uint32_t word_of(float value)
{
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    return word;
}

INLINE float float_of(uint32_t word)
{
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

INLINE uint32_t largest(const float *values)
{
    uint32_t most = 0;
    for (int i = 0; i < BLOCK; i++) {
        uint32_t magnitude = word_of(values[i]) & MAGNITUDE;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

/* The inverse of the scale, or 0 for a block to be sent without values. Writes the scale into the
 * record. `limit`: the largest scale for which levels x scale does not overflow. */
INLINE float scale_for(const float *values, float levels, float limit, char *record)
{
    uint32_t most = largest(values);
    float peak = float_of(most), scale = peak / levels, inverse = levels / peak;
    scale = scale < limit ? scale : limit;
    if (most >= INFINITY_WORD) {
        scale = float_of(NAN_WORD);
        inverse = 0.0f;
    } else if (most < SCALED_MIN_WORD) {
        scale = inverse = 0.0f;
    }
    memcpy(record, &scale, sizeof scale);
    return inverse;
}

INLINE float scale_in(const char *record)
{
    float scale;
    memcpy(&scale, record, sizeof scale);
    return scale;
}

/* The integer nearest to a small number, half to even, in the lowest bits of a word. */
INLINE uint32_t nearest(float value)
{
    return word_of(value + MANTISSA_END);
}

FOR_EACH_CPU
static void int8_encode(const void *restrict from, void *restrict to, Py_ssize_t blocks)
{
    const float *values = from;
    char *records = to;
    for (Py_ssize_t b = 0; b < blocks; b++, values += BLOCK, records += 4 + BLOCK) {
        float inverse = scale_for(values, 127.0f, float_of(UINT32_C(0x7C010203)), records);
        uint8_t *codes = (uint8_t *)records + 4;
        if (inverse == 0.0f) { /* NaN x 0 is NaN, not 0. */
            memset(codes, 0, BLOCK);
            continue;
        }
        for (int i = 0; i < BLOCK; i++)
            codes[i] = (uint8_t)nearest(values[i] * inverse);
    }
}

FOR_EACH_CPU
static void int8_decode(const void *restrict from, void *restrict to, Py_ssize_t blocks)
{
    const char *records = from;
    float *values = to;
    for (Py_ssize_t b = 0; b < blocks; b++, values += BLOCK, records += 4 + BLOCK) {
        float scale = scale_in(records);
        const int8_t *codes = (const int8_t *)records + 4;
        for (int i = 0; i < BLOCK; i++)
            values[i] = (float)codes[i] * scale;
    }
}

FOR_EACH_CPU
static void int4_encode(const void *restrict from, void *restrict to, Py_ssize_t blocks)
{
    const float *values = from;
    char *records = to;
    for (Py_ssize_t b = 0; b < blocks; b++, values += BLOCK, records += 4 + BLOCK / 2) {
        float inverse = scale_for(values, 7.0f, float_of(UINT32_C(0x7E124923)), records);
        uint8_t *codes = (uint8_t *)records + 4;
        if (inverse == 0.0f) {
            memset(codes, 0x88, BLOCK / 2);
            continue;
        }
        uint8_t wide[BLOCK];
        for (int i = 0; i < BLOCK; i++)
            wide[i] = (uint8_t)(nearest(values[i] * inverse) + 8);
        for (int i = 0; i < BLOCK / 2; i++)
            codes[i] = (uint8_t)(wide[2 * i] | (wide[2 * i + 1] << 4));
    }
}

FOR_EACH_CPU
static void int4_decode(const void *restrict from, void *restrict to, Py_ssize_t blocks)
{
    const char *records = from;
    float *values = to;
    for (Py_ssize_t b = 0; b < blocks; b++, values += BLOCK, records += 4 + BLOCK / 2) {
        float scale = scale_in(records);
        const uint8_t *codes = (const uint8_t *)records + 4;
        int8_t wide[BLOCK];
        for (int i = 0; i < BLOCK / 2; i++) {
            wide[2 * i] = (int8_t)((codes[i] & 15) - 8);
            wide[2 * i + 1] = (int8_t)((codes[i] >> 4) - 8);
        }
        for (int i = 0; i < BLOCK; i++)
            values[i] = (float)wide[i] * scale;
    }
}

FOR_EACH_CPU
static void fp4_encode(const void *restrict from, void *restrict to, Py_ssize_t blocks)
{
    const float *values = from;
    char *records = to;
    for (Py_ssize_t b = 0; b < blocks; b++, values += BLOCK, records += 4 + BLOCK / 2) {
        float inverse = scale_for(values, 1.0f, float_of(UINT32_C(0x7F7FFFFE)), records);
        uint8_t *codes = (uint8_t *)records + 4;
        uint8_t wide[BLOCK];
        for (int i = 0; i < BLOCK; i++) {
            uint32_t word = word_of(values[i]);
            /* Exponent and first mantissa bit, counted from 2**-7 on: 1 for it, 15 for 1. */
            float unit = inverse == 0.0f ? 0.0f : values[i] * inverse;
            int32_t halves = (int32_t)((word_of(unit) >> 22) & 0x1FF) - 239;
            halves = halves > 0 ? halves : 0;
            int32_t code = (halves >> 1) + (halves == 1);
            wide[i] = (uint8_t)(code | (int32_t)((word >> 28) & 8));
        }
        for (int i = 0; i < BLOCK / 2; i++)
            codes[i] = (uint8_t)(wide[2 * i] | (wide[2 * i + 1] << 4));
    }
}

FOR_EACH_CPU
static void fp4_decode(const void *restrict from, void *restrict to, Py_ssize_t blocks)
{
    const char *records = from;
    float *values = to;
    const float rebase = float_of((127 + 120) << 23);
    for (Py_ssize_t b = 0; b < blocks; b++, values += BLOCK, records += 4 + BLOCK / 2) {
        float scale = scale_in(records);
        const uint8_t *codes = (const uint8_t *)records + 4;
        uint8_t wide[BLOCK];
        for (int i = 0; i < BLOCK / 2; i++) {
            wide[2 * i] = codes[i] & 15;
            wide[2 * i + 1] = codes[i] >> 4;
        }
        for (int i = 0; i < BLOCK; i++) {
            /* The sign moves to bit 31, the code to the exponent: 2**120 too small. */
            uint32_t word = wide[i] * ((UINT32_C(1) << 28) + (UINT32_C(1) << 23));
            values[i] = float_of(word & UINT32_C(0x83800000)) * rebase * scale;
        }
    }
}

/* Python -------------------------------------------------------------------------------------- */

typedef void (*Loop)(const void *, void *, Py_ssize_t);

/* Convert all blocks of `from` into `to`, of from_bytes and to_bytes bytes each. */
static PyObject *convert(PyObject *args, Loop loop, Py_ssize_t from_bytes, Py_ssize_t to_bytes)
{
    Py_buffer from, to;
    if (!PyArg_ParseTuple(args, "y*w*", &from, &to))
        return NULL;
    Py_ssize_t blocks = from.len / from_bytes;
    int same = from.len == blocks * from_bytes && to.len == blocks * to_bytes;
    if (same) {
        Py_BEGIN_ALLOW_THREADS
        loop(from.buf, to.buf, blocks);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "these arrays are not of the same blocks");
    }
    PyBuffer_Release(&from);
    PyBuffer_Release(&to);
    return same ? Py_NewRef(Py_None) : NULL;
}

#define BOTH(name, code_bytes)                                                                     \
    static PyObject *py_##name##_encode(PyObject *self, PyObject *args)                            \
    {                                                                                              \
        (void)self;                                                                                \
        return convert(args, name##_encode, BLOCK * sizeof(float), 4 + (code_bytes));              \
    }                                                                                              \
    static PyObject *py_##name##_decode(PyObject *self, PyObject *args)                            \
    {                                                                                              \
        (void)self;                                                                                \
        return convert(args, name##_decode, 4 + (code_bytes), BLOCK * sizeof(float));              \
    }

BOTH(int8, BLOCK)
BOTH(int4, BLOCK / 2)
BOTH(fp4, BLOCK / 2)

static PyMethodDef methods[] = {
    {"int8_encode", py_int8_encode, METH_VARARGS, "(values_RB, records_R)"},
    {"int8_decode", py_int8_decode, METH_VARARGS, "(records_R, values_RB)"},
    {"int4_encode", py_int4_encode, METH_VARARGS, "(values_RB, records_R)"},
    {"int4_decode", py_int4_decode, METH_VARARGS, "(records_R, values_RB)"},
    {"fp4_encode", py_fp4_encode, METH_VARARGS, "(values_RB, records_R)"},
    {"fp4_decode", py_fp4_decode, METH_VARARGS, "(records_R, values_RB)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernels", "Compiled inner loops of block-wise codecs.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernels(void)
{
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    PyErr_SetString(PyExc_ImportError, "records are little-endian, and this machine is not");
    return NULL;
#else
    return PyModule_Create(&module);
#endif
}
