/* The compiled cosine transform of tiles, with the bits of the numpy operations in dct.py.
 *
 * The operations and their order are the same, and each rounds once: the build forbids contraction
 * (-ffp-contract=off). A tile stays in the L1 cache; numpy passes over many tiles some forty times.
 * Arrays are fp32. Must NOT hold constants: dct.py passes them in.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "fp32 operations do not round to fp32 here; numpy makes the right bits without this file"
#endif

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

#define CHUNK_MAX 64
#define WIDE 16 /* Vectors side by side, such as columns of a matrix. */

/* The constants of a transform of `size` values, as dct.py computes them. */
typedef struct {
    const float *scaling; /* `size` factors */
    const float *halving; /* size / 2 factors for the whole, size / 4 for its halves, ... */
    size_t size;
} Constants;

typedef float Lines[CHUNK_MAX][WIDE];

#define EACH for (size_t j = 0; j < WIDE; j++)

/* Transform the vectors in the columns of `a`. The result is in `a`; `b` is scratch. */
INLINE void forward(const Constants *with, Lines a, Lines b)
{
    const float *halving = with->halving;
    size_t size = with->size, count = 1;
    float(*from)[WIDE] = a, (*to)[WIDE] = b, (*spare)[WIDE];
    for (size_t length = size; length > 1; length /= 2, count *= 2) {
        size_t half = length / 2;
        for (size_t part = 0; part < count; part++)
            for (size_t i = 0; i < half; i++) {
                const float *first = from[part * length + i];
                const float *last = from[part * length + length - 1 - i];
                EACH to[2 * part * half + i][j] = first[j] + last[j];
                EACH to[(2 * part + 1) * half + i][j] = (first[j] - last[j]) * halving[i];
            }
        halving += half;
        spare = from, from = to, to = spare;
    }
    for (size_t half = 1; count > 1; half *= 2, count /= 2) {
        for (size_t part = 0; part < count / 2; part++)
            for (size_t i = 0; i < half; i++) {
                const float *even = from[2 * part * half + i];
                const float *odd = from[(2 * part + 1) * half + i];
                float(*out)[WIDE] = to + 2 * part * half + 2 * i;
                EACH out[0][j] = even[j];
                if (i + 1 < half)
                    EACH out[1][j] = odd[j] + odd[WIDE + j];
                else
                    EACH out[1][j] = odd[j];
            }
        spare = from, from = to, to = spare;
    }
    for (size_t i = 0; i < size; i++)
        EACH a[i][j] = from[i][j] * with->scaling[i];
}

/* The inverse of `forward`, with the same arguments. */
INLINE void backward(const Constants *with, Lines a, Lines b)
{
    size_t size = with->size, count = 1;
    float(*from)[WIDE] = a, (*to)[WIDE] = b, (*spare)[WIDE];
    for (size_t i = 0; i < size; i++)
        EACH a[i][j] = a[i][j] * with->scaling[i];
    for (size_t length = size; length > 1; length /= 2, count *= 2) {
        size_t half = length / 2;
        for (size_t part = 0; part < count; part++) {
            float(*in)[WIDE] = from + part * length;
            float(*even)[WIDE] = to + 2 * part * half, (*odd)[WIDE] = even + half;
            for (size_t i = 0; i < half; i++) {
                EACH even[i][j] = in[2 * i][j];
                if (i == 0)
                    EACH odd[0][j] = in[1][j];
                else
                    EACH odd[i][j] = in[2 * i - 1][j] + in[2 * i + 1][j];
            }
        }
        spare = from, from = to, to = spare;
    }
    const float *halving = with->halving + size - 1;
    for (size_t half = 1; count > 1; half *= 2, count /= 2) {
        halving -= half;
        for (size_t part = 0; part < count / 2; part++)
            for (size_t i = 0; i < half; i++) {
                const float *first = from[2 * part * half + i];
                const float *second = from[(2 * part + 1) * half + i];
                float(*out)[WIDE] = to + 2 * part * half;
                EACH
                {
                    float scaled = second[j] * halving[i];
                    out[i][j] = first[j] + scaled;
                    out[2 * half - 1 - i][j] = first[j] - scaled;
                }
            }
        spare = from, from = to, to = spare;
    }
    if (from != a)
        memcpy(a, from, size * sizeof *from);
}

/* Transform `count` vectors. Value i of vector j is at index i * along + j * across. */
INLINE void vectors(const Constants *with, int inverse, const float *from, float *to, size_t along,
                    size_t across, size_t count)
{
    Lines a, b;
    for (size_t first = 0; first < count; first += WIDE) {
        size_t wide = count - first < WIDE ? count - first : WIDE;
        memset(a, 0, sizeof a);
        for (size_t i = 0; i < with->size; i++)
            for (size_t j = 0; j < wide; j++)
                a[i][j] = from[i * along + (first + j) * across];
        if (inverse)
            backward(with, a, b);
        else
            forward(with, a, b);
        for (size_t i = 0; i < with->size; i++)
            for (size_t j = 0; j < wide; j++)
                to[i * along + (first + j) * across] = a[i][j];
    }
}

FOR_EACH_CPU
static void matrices(const Constants *with, int inverse, const float *from, float *to, size_t count)
{
    size_t size = with->size, tile = size * size;
    for (size_t k = 0; k < count; k++) {
        vectors(with, inverse, from + k * tile, to + k * tile, size, 1, size);
        vectors(with, inverse, to + k * tile, to + k * tile, 1, size, size);
    }
}

FOR_EACH_CPU
static void rows(const Constants *with, int inverse, const float *from, float *to, size_t count)
{
    vectors(with, inverse, from, to, 1, with->size, count);
}

/* Python -------------------------------------------------------------------------------------- */

static PyObject *py_each_axis(PyObject *self, PyObject *args)
{
    Py_buffer from, constants, to;
    Py_ssize_t size, dimensions;
    int inverse;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*nnp", &from, &to, &constants, &size, &dimensions, &inverse))
        return NULL;
    Py_ssize_t tile = (dimensions == 2 ? size * size : size) * (Py_ssize_t)sizeof(float);
    int right = size >= 2 && size <= CHUNK_MAX && (size & (size - 1)) == 0 &&
                from.len == to.len && from.len % tile == 0 &&
                constants.len == (2 * size - 1) * (Py_ssize_t)sizeof(float) &&
                ((uintptr_t)from.buf | (uintptr_t)to.buf | (uintptr_t)constants.buf) %
                        sizeof(float) == 0;
    if (right) {
        const float *given = constants.buf;
        Constants with = {given, given + size, (size_t)size};
        Py_BEGIN_ALLOW_THREADS
        (dimensions == 2 ? matrices : rows)(&with, inverse, from.buf, to.buf, from.len / tile);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "these are not tiles of such vectors");
    }
    PyBuffer_Release(&from);
    PyBuffer_Release(&to);
    PyBuffer_Release(&constants);
    return right ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef methods[] = {
    {"each_axis", py_each_axis, METH_VARARGS,
     "(tiles_NX, out_NX, constants, size, dimensions, inverse)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_cosines", "Compiled cosine transform.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__cosines(void)
{
    return PyModule_Create(&module);
}
