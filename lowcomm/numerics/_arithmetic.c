/* The arithmetic of the outer step in one pass over memory, with the bits of the numpy operations
 * in kernels.py.
 *
 * Each operation rounds once: the build forbids contraction (-ffp-contract=off), everything is
 * elementwise, and the mean sums in the order given. Arrays are fp32. Must NOT decide which
 * arguments are allowed (operations.py does; this file refuses only those that would harm the
 * process), nor let a bit depend on where an array begins or ends.
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

#define LINE 16 /* Elements of a cache line. */
/* Arrays of at least this size leave the caches before their next reader comes. They are written
 * past the caches, so that they need not be read first (docs/arithmetic.md has the measurements,
 * also of alternatives that are not used). */
#define STREAM_ELEMENTS ((size_t)2 << 20)
#define TOGETHER 8 /* Contributions read at once: prefetchers follow about 16 streams. */
#define PIECE 2048 /* Elements of a mean that stay in the L1 cache until all are added. */
#define SORTED 256 /* Elements of each contribution sorted at once, in the L1 cache. */
#define NORM 4096  /* Elements of a block that has a norm of its own. */

/* Subtract the elements [first, last); `out` may be `left` or `right`. */
INLINE void subtract(const float *left, const float *right, float *out, size_t first, size_t last)
{
#pragma GCC ivdep
    for (size_t i = first; i < last; i++)
        out[i] = left[i] - right[i];
}

#ifdef __SSE2__
#include <emmintrin.h>

FOR_EACH_CPU
static void difference(const float *left, const float *right, float *out, size_t size)
{
    size_t at = 0;
    if (size >= STREAM_ELEMENTS) {
        at = (-(uintptr_t)out & 63) / sizeof *out;
        subtract(left, right, out, 0, at);
        for (; at + LINE <= size; at += LINE) {
            _Alignas(64) float line[LINE];
            for (size_t i = 0; i < LINE; i++)
                line[i] = left[at + i] - right[at + i];
            for (size_t i = 0; i < LINE; i += 4)
                _mm_stream_ps(out + at + i, _mm_load_ps(line + i));
        }
        _mm_sfence(); /* Other threads must not see later writes before these. */
    }
    subtract(left, right, out, at, size);
}

/* Copies past the caches, whatever the size: the caller knows that `out` is not read soon. */
static void copy(const float *values, float *out, size_t size)
{
    size_t at = (-(uintptr_t)out & 63) / sizeof *out;
    at = at < size ? at : size;
    memcpy(out, values, at * sizeof *out);
    for (; at + LINE <= size; at += LINE)
        for (size_t i = 0; i < LINE; i += 4)
            _mm_stream_ps(out + at + i, _mm_loadu_ps(values + at + i));
    _mm_sfence(); /* As in difference(). */
    memcpy(out + at, values + at, (size - at) * sizeof *out);
}
#else
FOR_EACH_CPU
static void difference(const float *left, const float *right, float *out, size_t size)
{
    subtract(left, right, out, 0, size);
}

static void copy(const float *values, float *out, size_t size)
{
    memcpy(out, values, size * sizeof *out);
}
#endif

/* The inputs of a step. The next params and momentum may be written in their place. */
typedef struct {
    const float *params, *grad, *momentum;
    float lr, beta;
} Step;

FOR_EACH_CPU
static void nesterov_step(const Step *step, float *next_params, float *next_momentum, size_t size)
{
    Step of = *step;
#pragma GCC ivdep
    for (size_t i = 0; i < size; i++) {
        float moved = of.momentum[i] * of.beta + of.grad[i];
        next_params[i] = of.params[i] - (moved * of.beta + of.grad[i]) * of.lr;
        next_momentum[i] = moved;
    }
}

/* `grad` is the target that the momentum pulls towards. */
FOR_EACH_CPU
static void heavy_ball_step(const Step *step, float *next_params, float *next_momentum, size_t size)
{
    Step of = *step;
#pragma GCC ivdep
    for (size_t i = 0; i < size; i++) {
        float moved = of.momentum[i] * of.beta + (of.grad[i] - of.params[i]) * of.lr;
        next_params[i] = of.params[i] + moved;
        next_momentum[i] = moved;
    }
}

FOR_EACH_CPU
static void descent(const Step *step, float *next_params, size_t size)
{
    Step of = *step;
#pragma GCC ivdep
    for (size_t i = 0; i < size; i++)
        next_params[i] = of.params[i] - of.grad[i] * of.lr;
}

/* Add `count` contributions to the sums in `out` (`fresh`: there are none), and scale them. `count`
 * and `fresh` are constants where this is inlined: an element's sum then stays in a register, on
 * every CPU. */
INLINE void add_up(const float *const *restrict from, const float *restrict weights, size_t count,
                   int fresh, float scale, float *out, size_t size)
{
#pragma GCC ivdep
    for (size_t i = 0; i < size; i++) {
        float sum = fresh ? from[0][i] * weights[0] : out[i] + from[0][i] * weights[0];
        for (size_t k = 1; k < count; k++)
            sum = sum + from[k][i] * weights[k];
        out[i] = sum * scale;
    }
}

INLINE void add_some(const float *const *from, const float *weights, size_t count, int fresh,
                     float scale, float *out, size_t size)
{
    switch (count) {
    case 1: add_up(from, weights, 1, fresh, scale, out, size); break;
    case 2: add_up(from, weights, 2, fresh, scale, out, size); break;
    case 3: add_up(from, weights, 3, fresh, scale, out, size); break;
    case 4: add_up(from, weights, 4, fresh, scale, out, size); break;
    case 5: add_up(from, weights, 5, fresh, scale, out, size); break;
    case 6: add_up(from, weights, 6, fresh, scale, out, size); break;
    case 7: add_up(from, weights, 7, fresh, scale, out, size); break;
    default: add_up(from, weights, TOGETHER, fresh, scale, out, size); break;
    }
}

FOR_EACH_CPU
static void weighted_mean(const float *const *from, const float *weights, size_t count,
                          float inverse, float *out, size_t size)
{
    if (count <= TOGETHER) {
        add_some(from, weights, count, 1, inverse, out, size);
        return;
    }
    const float *here[TOGETHER];
    for (size_t at = 0; at < size; at += PIECE) {
        size_t piece = size - at < PIECE ? size - at : PIECE;
        for (size_t k = 0; k < count; k += TOGETHER) {
            size_t some = count - k < TOGETHER ? count - k : TOGETHER;
            float scale = k + some == count ? inverse : 1.0f; /* x 1 changes nothing. */
            for (size_t j = 0; j < some; j++)
                here[j] = from[k + j] + at;
            if (k == 0)
                add_up(here, weights, TOGETHER, 1, scale, out + at, piece);
            else
                add_some(here, weights + k, some, 0, scale, out + at, piece);
        }
    }
}

/* Map the word of an fp32 number to an integer in the order of these numbers, and back. */
INLINE int32_t swap_order(int32_t word)
{
    return word ^ ((word >> 31) & 0x7FFFFFFF);
}

INLINE int32_t key_of(float value)
{
    int32_t word;
    memcpy(&word, &value, sizeof word);
    return swap_order(word);
}

INLINE float number_of(int32_t key)
{
    int32_t word = swap_order(key);
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Put the smaller number of each pair into `low`, the larger one into `high`. */
INLINE void exchange(int32_t *restrict low, int32_t *restrict high)
{
    for (size_t i = 0; i < SORTED; i++) {
        int32_t one = low[i], other = high[i];
        low[i] = one < other ? one : other;
        high[i] = one < other ? other : one;
    }
}

/* `keys`: scratch for SORTED elements of each contribution; the last ones may stay unused. */
FOR_EACH_CPU
static void trimmed_mean(const float *const *from, size_t count, size_t trimmed, float inverse,
                         int32_t (*keys)[SORTED], float *out, size_t size)
{
    for (size_t at = 0; at < size; at += SORTED, out += SORTED) {
        size_t here = size - at < SORTED ? size - at : SORTED;
        for (size_t k = 0; k < count; k++) {
            const float *values = from[k] + at;
            for (size_t i = 0; i < here; i++)
                keys[k][i] = key_of(values[i]);
        }
        for (size_t last = count - 1; last > 0; last--)
            for (size_t k = 0; k < last; k++) /* Move the largest to the end. */
                exchange(keys[k], keys[k + 1]);
        for (size_t i = 0; i < here; i++)
            out[i] = number_of(keys[trimmed][i]);
        for (size_t k = trimmed + 1; k < count - trimmed; k++)
            for (size_t i = 0; i < here; i++)
                out[i] = out[i] + number_of(keys[k][i]);
        for (size_t i = 0; i < here; i++)
            out[i] = out[i] * inverse;
    }
}

/* True if no value is infinite or a NaN: only those have all bits of the exponent set. */
FOR_EACH_CPU
static int all_finite(const float *values, size_t size)
{
    const int32_t exponent = 0x7F800000;
    for (size_t at = 0; at < size; at += PIECE) {
        int32_t odd = 0;
        size_t here = size - at < PIECE ? size - at : PIECE;
        for (size_t i = at; i < at + here; i++) {
            int32_t word;
            memcpy(&word, values + i, sizeof word);
            odd |= (word & exponent) == exponent;
        }
        if (odd)
            return 0;
    }
    return 1;
}

/* The sum of the squares of each NORM values: the second half is added to the first, repeatedly. */
FOR_EACH_CPU
static void block_squares(const float *values, size_t size, double *out)
{
    float block[NORM];
    double sum[NORM / 2];
    for (size_t at = 0; at < size; at += NORM) {
        size_t here = size - at < NORM ? size - at : NORM;
        memcpy(block, values + at, here * sizeof(float));
        memset(block + here, 0, (NORM - here) * sizeof(float));
        for (size_t i = 0; i < NORM / 2; i++) {
            double one = block[i], two = block[i + NORM / 2];
            sum[i] = one * one + two * two;
        }
        for (size_t width = NORM / 4; width > 0; width /= 2)
            for (size_t i = 0; i < width; i++)
                sum[i] = sum[i] + sum[i + width];
        *out++ = sum[0];
    }
}

/* Python -------------------------------------------------------------------------------------- */

/* True if all arrays are fp32 and of this size; otherwise sets a Python error. */
static int fit(const Py_buffer *arrays, Py_ssize_t count, Py_ssize_t bytes)
{
    for (Py_ssize_t k = 0; k < count; k++) {
        if (arrays[k].len != bytes || bytes % (Py_ssize_t)sizeof(float) != 0 ||
            (uintptr_t)arrays[k].buf % sizeof(float) != 0) {
            PyErr_SetString(PyExc_ValueError, "these are not fp32 arrays of one size");
            return 0;
        }
    }
    return 1;
}

static PyObject *release(Py_buffer *arrays, Py_ssize_t count, int done)
{
    for (Py_ssize_t k = 0; k < count; k++)
        PyBuffer_Release(&arrays[k]);
    return done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *py_difference(PyObject *self, PyObject *args)
{
    Py_buffer of[3];
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*w*", &of[0], &of[1], &of[2]))
        return NULL;
    int right = fit(of, 3, of[0].len);
    if (right) {
        Py_BEGIN_ALLOW_THREADS
        difference(of[0].buf, of[1].buf, of[2].buf, of[0].len / sizeof(float));
        Py_END_ALLOW_THREADS
    }
    return release(of, 3, right);
}

static PyObject *py_copy(PyObject *self, PyObject *args)
{
    Py_buffer of[2];
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*", &of[0], &of[1]))
        return NULL;
    int right = fit(of, 2, of[0].len);
    if (right) {
        Py_BEGIN_ALLOW_THREADS
        copy(of[0].buf, of[1].buf, of[0].len / sizeof(float));
        Py_END_ALLOW_THREADS
    }
    return release(of, 2, right);
}

static PyObject *py_all_finite(PyObject *self, PyObject *args)
{
    Py_buffer of;
    int finite = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*", &of))
        return NULL;
    int right = fit(&of, 1, of.len);
    if (right) {
        Py_BEGIN_ALLOW_THREADS
        finite = all_finite(of.buf, of.len / sizeof(float));
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&of);
    return right ? PyBool_FromLong(finite) : NULL;
}

typedef void Stepping(const Step *, float *, float *, size_t);

static PyObject *step_of(PyObject *args, Stepping *make)
{
    Py_buffer of[5];
    Step step;
    if (!PyArg_ParseTuple(args, "y*y*y*ffw*w*", &of[0], &of[1], &of[2], &step.lr, &step.beta,
                          &of[3], &of[4]))
        return NULL;
    int right = fit(of, 5, of[0].len);
    if (right) {
        step.params = of[0].buf, step.grad = of[1].buf, step.momentum = of[2].buf;
        Py_BEGIN_ALLOW_THREADS
        make(&step, of[3].buf, of[4].buf, of[0].len / sizeof(float));
        Py_END_ALLOW_THREADS
    }
    return release(of, 5, right);
}

static PyObject *py_nesterov_step(PyObject *self, PyObject *args)
{
    (void)self;
    return step_of(args, nesterov_step);
}

static PyObject *py_heavy_ball_step(PyObject *self, PyObject *args)
{
    (void)self;
    return step_of(args, heavy_ball_step);
}

static PyObject *py_descent(PyObject *self, PyObject *args)
{
    Py_buffer of[3];
    Step step = {0};
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*fw*", &of[0], &of[1], &step.lr, &of[2]))
        return NULL;
    int right = fit(of, 3, of[0].len);
    if (right) {
        step.params = of[0].buf, step.grad = of[1].buf;
        Py_BEGIN_ALLOW_THREADS
        descent(&step, of[2].buf, of[0].len / sizeof(float));
        Py_END_ALLOW_THREADS
    }
    return release(of, 3, right);
}

/* Get the buffers of all contributions; returns the number that succeeded. */
static Py_ssize_t take_all(PyObject *contributions, Py_buffer *arrays, Py_ssize_t count)
{
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *one = PySequence_GetItem(contributions, k);
        int failed = one == NULL || PyObject_GetBuffer(one, &arrays[k], PyBUF_SIMPLE) < 0;
        Py_XDECREF(one);
        if (failed)
            return k;
    }
    return count;
}

/* The weighted mean, or, if `weights` is NULL, the trimmed mean. */
static PyObject *mean_of(PyObject *contributions, Py_ssize_t count, const Py_buffer *weights,
                         Py_ssize_t trimmed, float inverse, const Py_buffer *out)
{
    Py_ssize_t taken = 0;
    Py_buffer *arrays = PyMem_Calloc(count, sizeof *arrays);
    const float **from = PyMem_Calloc(count, sizeof *from);
    int32_t(*keys)[SORTED] = PyMem_Calloc(weights == NULL ? count : 1, sizeof *keys);
    int right = 0;
    if (arrays == NULL || from == NULL || keys == NULL)
        PyErr_NoMemory();
    else if ((taken = take_all(contributions, arrays, count)) == count)
        right = (weights == NULL || fit(weights, 1, weights->len)) &&
                fit(out, 1, out->len) && fit(arrays, count, out->len);
    if (right) {
        size_t size = out->len / sizeof(float);
        for (Py_ssize_t k = 0; k < count; k++)
            from[k] = arrays[k].buf;
        Py_BEGIN_ALLOW_THREADS
        if (weights != NULL)
            weighted_mean(from, weights->buf, count, inverse, out->buf, size);
        else
            trimmed_mean(from, count, trimmed, inverse, keys, out->buf, size);
        Py_END_ALLOW_THREADS
    }
    PyObject *result = release(arrays, taken, right);
    PyMem_Free(keys);
    PyMem_Free(from);
    PyMem_Free(arrays);
    return result;
}

static PyObject *py_weighted_mean(PyObject *self, PyObject *args)
{
    PyObject *contributions, *result = NULL;
    Py_buffer of[2];
    float inverse;
    (void)self;
    if (!PyArg_ParseTuple(args, "Oy*fw*", &contributions, &of[0], &inverse, &of[1]))
        return NULL;
    Py_ssize_t count = PySequence_Size(contributions);
    if (count > 0 && of[0].len == count * (Py_ssize_t)sizeof(float))
        result = mean_of(contributions, count, &of[0], 0, inverse, &of[1]);
    else if (count >= 0)
        PyErr_SetString(PyExc_ValueError, "one weight a contribution");
    release(of, 2, 0);
    return result;
}

static PyObject *py_trimmed_mean(PyObject *self, PyObject *args)
{
    PyObject *contributions, *result = NULL;
    Py_ssize_t trimmed;
    Py_buffer out;
    float inverse;
    (void)self;
    if (!PyArg_ParseTuple(args, "Onfw*", &contributions, &trimmed, &inverse, &out))
        return NULL;
    Py_ssize_t count = PySequence_Size(contributions);
    if (trimmed >= 0 && trimmed < count - trimmed)
        result = mean_of(contributions, count, NULL, trimmed, inverse, &out);
    else if (count >= 0)
        PyErr_SetString(PyExc_ValueError, "nothing would be left");
    release(&out, 1, 0);
    return result;
}

static PyObject *py_block_squares(PyObject *self, PyObject *args)
{
    Py_buffer of[2];
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*", &of[0], &of[1]))
        return NULL;
    size_t size = of[0].len / sizeof(float), sums = (size + NORM - 1) / NORM;
    int right = fit(of, 1, of[0].len);
    if (of[1].len != (Py_ssize_t)(sums * sizeof(double)) || (uintptr_t)of[1].buf % 8 != 0) {
        PyErr_SetString(PyExc_ValueError, "one fp64 sum for each 4096 values");
        right = 0;
    }
    if (right) {
        Py_BEGIN_ALLOW_THREADS
        block_squares(of[0].buf, size, of[1].buf);
        Py_END_ALLOW_THREADS
    }
    return release(of, 2, right);
}

static PyMethodDef methods[] = {
    {"copy", py_copy, METH_VARARGS, "(values_P, out_P)"},
    {"difference", py_difference, METH_VARARGS, "(left_P, right_P, out_P)"},
    {"weighted_mean", py_weighted_mean, METH_VARARGS, "(contributions, weights, inverse, out_P)"},
    {"trimmed_mean", py_trimmed_mean, METH_VARARGS, "(contributions, trimmed, inverse, out_P)"},
    {"block_squares", py_block_squares, METH_VARARGS, "(values_P, out_R)"},
    {"all_finite", py_all_finite, METH_VARARGS, "(values_P) -> bool"},
    {"descent", py_descent, METH_VARARGS, "(params_P, grad_P, lr, next_params_P)"},
    {"nesterov_step", py_nesterov_step, METH_VARARGS,
     "(params_P, grad_P, momentum_P, lr, beta, next_params_P, next_momentum_P)"},
    {"heavy_ball_step", py_heavy_ball_step, METH_VARARGS,
     "(params_P, target_P, momentum_P, lr, beta, next_params_P, next_momentum_P)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_arithmetic", "Compiled arithmetic of the outer step.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__arithmetic(void)
{
    return PyModule_Create(&module);
}
