/* The arithmetic of the outer step in one pass over memory: the bits that arithmetic.py makes with
 * numpy.
 *
 * Each operation rounds once: the build forbids contraction (-ffp-contract=off), everything is
 * elementwise, and the mean sums in the order given. Arrays are fp32. Must NOT decide what may be
 * given (outer.py does; here only what would harm the process is refused), nor let a bit depend on
 * where an array begins or ends.
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

#if !defined(ONE_CPU) && defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) &&         \
    !defined(__clang__)
/* The loader picks what this CPU has; the bits are the same. (With ONE_CPU the compiler's flags say
 * which CPU: so the tests see each.) */
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU
#endif
#define INLINE static inline __attribute__((always_inline))

#define LINE 16 /* Elements of a cache line. */
/* Arrays from here on leave the caches before anybody reads them: written past the caches, they
 * need not be read first (docs/arithmetic.md has the figures, also for what is not done). */
#define STREAM_ELEMENTS ((size_t)2 << 20)
#define WIDE 4     /* A mean's vectors in work at once, of a line each. */
#define TOGETHER 8 /* Contributions read side by side: prefetchers follow some 16 streams. */
#define PIECE 2048 /* Elements of a mean that wait in the L1 cache for the other contributions. */
#define NORM 4096  /* Elements that have a norm of their own. */

/* The elements from `first` to before `last`; `out` may be `left` or `right`. */
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
        _mm_sfence(); /* Else others could see what is written next before it. */
    }
    subtract(left, right, out, at, size);
}

/* Past the caches, whatever the size: who calls it knows that nobody reads `out` soon. */
static void copy(const float *values, float *out, size_t size)
{
    size_t at = (-(uintptr_t)out & 63) / sizeof *out;
    at = at < size ? at : size;
    memcpy(out, values, at * sizeof *out);
    for (; at + LINE <= size; at += LINE)
        for (size_t i = 0; i < LINE; i += 4)
            _mm_stream_ps(out + at + i, _mm_loadu_ps(values + at + i));
    _mm_sfence(); /* As above. */
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

/* A step on `params` and `momentum`, of which the next ones may take the place. */
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

/* `grad` is where the momentum pulls to. */
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

/* A line of elements, wherever it begins; the compiler makes of it what the CPU has. */
typedef float Line __attribute__((vector_size(LINE * sizeof(float)), aligned(4), may_alias));

/* Add some contributions to what is in `sum` (`fresh`: nothing is), and scale that. */
INLINE void add_up(const float *const *from, const float *weights, size_t count, int fresh,
                   float scale, size_t at, float *sum, size_t size)
{
    size_t i = 0;
    for (; i + WIDE * LINE <= size; i += WIDE * LINE) {
        Line acc[WIDE];
        for (size_t j = 0; j < WIDE; j++) {
            if (fresh)
                acc[j] = *(const Line *)(from[0] + at + i + j * LINE) * weights[0];
            else
                acc[j] = *(const Line *)(sum + i + j * LINE);
        }
        for (size_t k = fresh ? 1 : 0; k < count; k++)
            for (size_t j = 0; j < WIDE; j++)
                acc[j] = acc[j] + *(const Line *)(from[k] + at + i + j * LINE) * weights[k];
        for (size_t j = 0; j < WIDE; j++)
            *(Line *)(sum + i + j * LINE) = acc[j] * scale;
    }
    for (; i < size; i++) {
        float acc = fresh ? from[0][at + i] * weights[0] : sum[i];
        for (size_t k = fresh ? 1 : 0; k < count; k++)
            acc = acc + from[k][at + i] * weights[k];
        sum[i] = acc * scale;
    }
}

FOR_EACH_CPU
static void weighted_mean(const float *const *from, const float *weights, size_t count,
                          float inverse, float *out, size_t size)
{
    for (size_t at = 0; at < size; at += PIECE) {
        size_t piece = size - at < PIECE ? size - at : PIECE;
        for (size_t k = 0; k < count; k += TOGETHER) {
            int last = count - k <= TOGETHER;
            add_up(from + k, weights + k, last ? count - k : TOGETHER, k == 0,
                   last ? inverse : 1.0f, at, out + at, piece); /* x 1 changes nothing. */
        }
    }
}

/* A line of fp32 words, or of integers in the order of those numbers. */
typedef int32_t Keys __attribute__((vector_size(LINE * sizeof(float)), aligned(4), may_alias));

/* Sort `count` lines element by element, and write the sum of all but those at the ends, the
 * smallest first. */
INLINE void trim(Keys *keys, size_t count, size_t trimmed, float inverse, Line *out)
{
    for (size_t k = 0; k < count; k++)
        keys[k] ^= (keys[k] >> 31) & 0x7FFFFFFF; /* Integers in the numbers' order. */
    for (size_t last = count - 1; last > 0; last--) {
        Keys most = keys[0];
        for (size_t k = 0; k < last; k++) { /* The largest to the end. */
            Keys other = keys[k + 1], less = most < other;
            keys[k] = (most & less) | (other & ~less);
            most = (other & less) | (most & ~less);
        }
        keys[last] = most;
    }
    for (size_t k = trimmed; k < count - trimmed; k++)
        keys[k] ^= (keys[k] >> 31) & 0x7FFFFFFF; /* Numbers again. */
    Line sum = (Line)keys[trimmed];
    for (size_t k = trimmed + 1; k < count - trimmed; k++)
        sum = sum + (Line)keys[k];
    *out = sum * inverse;
}

/* `keys`: room for a line of each contribution. */
FOR_EACH_CPU
static void trimmed_mean(const float *const *from, size_t count, size_t trimmed, float inverse,
                         Keys *keys, float *out, size_t size)
{
    size_t at = 0;
    for (; at + LINE <= size; at += LINE) {
        for (size_t k = 0; k < count; k++)
            keys[k] = *(const Keys *)(from[k] + at);
        trim(keys, count, trimmed, inverse, (Line *)(out + at));
    }
    Line last;
    for (size_t k = 0; k < count && at < size; k++)
        memcpy(&keys[k], from[k] + at, (size - at) * sizeof(float));
    if (at < size) {
        trim(keys, count, trimmed, inverse, &last);
        memcpy(out + at, &last, (size - at) * sizeof(float));
    }
}

/* Whether no value is infinite or a NaN: all bits of the exponent are set in those alone. */
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

/* The sum of the squares of each NORM values: halves onto each other. */
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

/* Whether arrays can be worked on together; says what is wrong otherwise. */
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

/* The buffers of all contributions; how many of them were taken. */
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

/* By weight, or, if there is none, without the `trimmed` ones at the ends. */
static PyObject *mean_of(PyObject *contributions, Py_ssize_t count, const Py_buffer *weights,
                         Py_ssize_t trimmed, float inverse, const Py_buffer *out)
{
    Py_ssize_t taken = 0;
    Py_buffer *arrays = PyMem_Calloc(count, sizeof *arrays);
    const float **from = PyMem_Calloc(count, sizeof *from);
    Keys *keys = PyMem_Calloc(count, sizeof *keys);
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
