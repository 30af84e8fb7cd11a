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
#else
FOR_EACH_CPU
static void difference(const float *left, const float *right, float *out, size_t size)
{
    subtract(left, right, out, 0, size);
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

static PyObject *py_nesterov_step(PyObject *self, PyObject *args)
{
    Py_buffer of[5];
    Step step;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*ffw*w*", &of[0], &of[1], &of[2], &step.lr, &step.beta,
                          &of[3], &of[4]))
        return NULL;
    int right = fit(of, 5, of[0].len);
    if (right) {
        step.params = of[0].buf, step.grad = of[1].buf, step.momentum = of[2].buf;
        Py_BEGIN_ALLOW_THREADS
        nesterov_step(&step, of[3].buf, of[4].buf, of[0].len / sizeof(float));
        Py_END_ALLOW_THREADS
    }
    return release(of, 5, right);
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

static PyObject *mean_of(PyObject *contributions, const Py_buffer *weights, float inverse,
                         const Py_buffer *out)
{
    Py_ssize_t count = PySequence_Size(contributions), taken = 0;
    if (count < 0)
        return NULL;
    if (count == 0 || weights->len != count * (Py_ssize_t)sizeof(float)) {
        PyErr_SetString(PyExc_ValueError, "one weight a contribution");
        return NULL;
    }
    Py_buffer *arrays = PyMem_Calloc(count, sizeof *arrays);
    const float **from = PyMem_Calloc(count, sizeof *from);
    int right = 0;
    if (arrays == NULL || from == NULL)
        PyErr_NoMemory();
    else if ((taken = take_all(contributions, arrays, count)) == count)
        right = fit(weights, 1, weights->len) && fit(out, 1, out->len) &&
                fit(arrays, count, out->len);
    if (right) {
        for (Py_ssize_t k = 0; k < count; k++)
            from[k] = arrays[k].buf;
        Py_BEGIN_ALLOW_THREADS
        weighted_mean(from, weights->buf, count, inverse, out->buf, out->len / sizeof(float));
        Py_END_ALLOW_THREADS
    }
    PyObject *result = release(arrays, taken, right);
    PyMem_Free(from);
    PyMem_Free(arrays);
    return result;
}

static PyObject *py_weighted_mean(PyObject *self, PyObject *args)
{
    PyObject *contributions;
    Py_buffer of[2];
    float inverse;
    (void)self;
    if (!PyArg_ParseTuple(args, "Oy*fw*", &contributions, &of[0], &inverse, &of[1]))
        return NULL;
    PyObject *result = mean_of(contributions, &of[0], inverse, &of[1]);
    release(of, 2, 0);
    return result;
}

static PyMethodDef methods[] = {
    {"difference", py_difference, METH_VARARGS, "(left_P, right_P, out_P)"},
    {"weighted_mean", py_weighted_mean, METH_VARARGS, "(contributions, weights, inverse, out_P)"},
    {"descent", py_descent, METH_VARARGS, "(params_P, grad_P, lr, next_params_P)"},
    {"nesterov_step", py_nesterov_step, METH_VARARGS,
     "(params_P, grad_P, momentum_P, lr, beta, next_params_P, next_momentum_P)"},
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
