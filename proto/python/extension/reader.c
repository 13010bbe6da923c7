/* SPDX-License-Identifier: Apache-2.0 */
/* reader.c: the Python extension tessera._reader, which opens rows with proto's own client
 * (proto/session/client.h), so that Python gets them checked as the trainer does and at its speed.
 *
 * Python code decides what to do with them: the extension knows neither numpy nor torch. It gives
 * memory by the buffer protocol, and a failure as the exception Failure(code, words). Only the
 * limited API of Python 3.11 is used, so one build serves that version and all later ones. */
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <string.h>

#include "common/program/log.h"
#include "proto/session/client.h"

/* --- the memory that a row's arrays are in ---
 *
 * A row is decoded into an arena. Each of its arrays is a view that holds a reference to the
 * arena's owner. Once no array is left, the arena goes to a short list for the rows to come;
 * without it the kernel would have to give and clear new pages for every row, which costs more than
 * opening it. All of this happens with Python's lock held. */

enum { SPARE = 4 };

typedef struct row_memory {
    PyObject_HEAD arena memory;
} row_memory;

typedef struct memory_view {
    PyObject_HEAD PyObject *owner;
    void *data;
    Py_ssize_t bytes;
} memory_view;

static PyTypeObject *memory_type, *view_type;
static arena spare[SPARE];
static int n_spare;

static void free_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc free_it = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_it(object);
    Py_DECREF(type);
}

static void end_memory(PyObject *object)
{
    row_memory *self = (row_memory *)object;
    arena_reset(&self->memory);
    if (n_spare < SPARE)
        spare[n_spare++] = self->memory;
    else
        arena_done(&self->memory);
    free_object(object);
}

static void end_view(PyObject *object)
{
    Py_XDECREF(((memory_view *)object)->owner);
    free_object(object);
}

static int get_buffer(PyObject *object, Py_buffer *view, int flags)
{
    memory_view *self = (memory_view *)object;
    return PyBuffer_FillInfo(view, object, self->data, self->bytes, 0, flags);
}

/* Makes the types of this file. Returns 0, or -1 with an exception. */
static int row_memory_types(void)
{
    static PyType_Slot memory_slots[] = {{Py_tp_dealloc, end_memory}, {0, NULL}};
    static PyType_Slot view_slots[] = {
        {Py_tp_dealloc, end_view}, {Py_bf_getbuffer, get_buffer}, {0, NULL}};
    static PyType_Spec memory_spec = {"tessera._reader.Memory", sizeof(row_memory), 0,
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                      memory_slots};
    static PyType_Spec view_spec = {"tessera._reader.View", sizeof(memory_view), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                    view_slots};
    memory_type = (PyTypeObject *)PyType_FromSpec(&memory_spec);
    view_type = (PyTypeObject *)PyType_FromSpec(&view_spec);
    return memory_type && view_type ? 0 : -1;
}

/* The memory of one row, which Python frees with the last array in it: a new reference, or NULL
 * with an exception. */
static PyObject *row_memory_new(void)
{
    row_memory *self = (row_memory *)PyType_GenericAlloc(memory_type, 0);
    if (!self)
        return NULL;
    if (n_spare > 0)
        self->memory = spare[--n_spare];
    else
        arena_init(&self->memory, 0);
    return (PyObject *)self;
}

static arena *row_memory_arena(PyObject *memory)
{
    return &((row_memory *)memory)->memory;
}

/* Bytes in it as an object with the buffer protocol, which may be written and keeps the memory
 * alive. */
static PyObject *row_memory_view(PyObject *memory, void *data, size_t bytes)
{
    memory_view *self = (memory_view *)PyType_GenericAlloc(view_type, 0);
    if (!self)
        return NULL;
    Py_INCREF(memory);
    self->owner = memory;
    self->data = data;
    self->bytes = (Py_ssize_t)bytes;
    return (PyObject *)self;
}

/* --- a decoded row as values of Python --- */

/* The bytes, dtype and shape of a tensor. */
static PyObject *tensor_value(const st_tensor *tensor, PyObject *memory)
{
    PyObject *shape = PyTuple_New(tensor->n_dims);
    for (int i = 0; shape && i < tensor->n_dims; i++) {
        PyObject *size = PyLong_FromLongLong(tensor->shape[i]);
        if (!size || PyTuple_SetItem(shape, i, size) != 0)
            Py_CLEAR(shape);
    }
    PyObject *bytes =
        shape ? row_memory_view(memory, (void *)tensor->data.data, tensor->data.size) : NULL;
    PyObject *value =
        bytes ? Py_BuildValue("(OsO)", bytes, st_dtype_name(tensor->dtype), shape) : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(shape);
    return value;
}

static PyObject *arrays_of(const row *packed, PyObject *memory)
{
    st_tensor tensors[ROW_TENSORS];
    size_t n_tensors;
    PyObject *arrays = PyDict_New();
    row_tensors(packed, 1, tensors, &n_tensors);
    for (size_t i = 0; arrays && i < n_tensors; i++) {
        PyObject *value = tensor_value(&tensors[i], memory);
        if (!value || PyDict_SetItemString(arrays, tensors[i].name, value) != 0)
            Py_CLEAR(arrays);
        Py_XDECREF(value);
    }
    return arrays;
}

/* A decoded row as (number, message_bytes, arrays, texts). arrays: {name: (bytes, dtype text of
 * safetensors, shape)}; texts: {"cursor", "quarantine", "references", "worker"}. message_bytes is
 * what the row had on the wire. */
static PyObject *row_values(const row *packed, const frame *head, size_t message_bytes,
                            PyObject *memory)
{
    PyObject *arrays = arrays_of(packed, memory);
    if (!arrays)
        return NULL;
    return Py_BuildValue("(KnN{ssssssss})", (unsigned long long)head->row,
                         (Py_ssize_t)message_bytes, arrays, "cursor", packed->cursor, "quarantine",
                         packed->quarantine, "references", packed->references, "worker",
                         packed->worker ? packed->worker : "");
}

/* --- the type Reader, a client for Python ---
 *
 * Waiting and decoding happen without Python's lock. A client belongs to one thread at a time, so a
 * call while another thread is in one is an error; only interrupt() may come from another thread.
 */

static PyObject *failure;

static int add_failure(PyObject *module)
{
    failure = PyErr_NewExceptionWithDoc("tessera._reader.Failure",
                                        "What proto's reader reports: (code, words).", NULL, NULL);
    return failure ? PyModule_AddObjectRef(module, "Failure", failure) : -1;
}

static PyObject *raise_failure(status code)
{
    /* Texts of peers may hold any bytes. */
    const char *text = status_text();
    PyObject *words = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *arguments = words ? Py_BuildValue("(sN)", status_name(code), words) : NULL;
    if (arguments)
        PyErr_SetObject(failure, arguments);
    Py_XDECREF(arguments);
    return NULL;
}

typedef struct reader {
    PyObject_HEAD client *source; /* NULL until it is opened, and after close() */
    wire_msg *message;
    atomic_bool stop;
    bool busy;
} reader;

/* client_options.stopped has no argument, so the thread that opens, reads or comes back says here
 * whose stop counts. */
static _Thread_local const atomic_bool *stop_of_thread;

static bool is_stopped(void)
{
    return atomic_load(stop_of_thread);
}

static void tell_waiting(const char *endpoint, double seconds, const char *why)
{
    log_warn("waiting for prepd at %s since %.0f s: %s", endpoint, seconds, why);
}

/* Claims the reader for a call. False with an exception if it has a client where there must be
 * none, or the other way round, or if another thread is in a call. */
static bool begin_call(reader *self, bool opened)
{
    if (self->busy)
        PyErr_SetString(PyExc_RuntimeError, "another thread is in a call of this Reader");
    else if (opened != (self->source != NULL))
        PyErr_SetString(PyExc_RuntimeError,
                        opened ? "this Reader is not open" : "this Reader is open already");
    else
        self->busy = true;
    return self->busy && !PyErr_Occurred();
}

static PyObject *end_open(reader *self, status st)
{
    self->busy = false;
    if (st != ST_OK)
        return raise_failure(st);
    Py_RETURN_NONE;
}

static PyObject *open_daemon(PyObject *object, PyObject *args, PyObject *named)
{
    static const char *names[] = {"endpoint", "stream",  "cursor", "quarantine", "start_row",
                                  "rank",     "ranks",   "credit", "rows_later", "timeout",
                                  "keys",     "patient", "run",    "consumer",   NULL};
    reader *self = (reader *)object;
    client_options options = {
        .rank = 0, .ranks = 1, .waiting = tell_waiting, .stopped = is_stopped};
    long long start_row = 0, credit = 0;
    double timeout = 60;
    int rows_later = 1, patient = 0;
    if (!PyArg_ParseTupleAndKeywords(args, named, "sszz|LiiLpdzpzz", (char **)names,
                                     &options.endpoint, &options.stream, &options.cursor,
                                     &options.quarantine, &start_row, &options.rank, &options.ranks,
                                     &credit, &rows_later, &timeout, &options.keys, &patient,
                                     &options.run, &options.consumer) ||
        !begin_call(self, false))
        return NULL;
    options.start_row = start_row;
    options.credit_bytes = credit;
    options.rows_later = rows_later;
    options.patient = patient;
    options.timeout_ms = timeout < 2e6 ? (int)(timeout * 1e3) : 2000000000;
    client *source = NULL;
    status st;
    Py_BEGIN_ALLOW_THREADS;
    stop_of_thread = &self->stop;
    st = client_open(&options, &source);
    Py_END_ALLOW_THREADS;
    self->source = source;
    return end_open(self, st);
}

static PyObject *open_recording(PyObject *object, PyObject *args, PyObject *named)
{
    static const char *names[] = {"path", "skip", "rank", "ranks", "step_rows", "loops", NULL};
    reader *self = (reader *)object;
    replay_options options = {.ranks = 1, .loops = 1};
    unsigned long long skip = 0;
    long long step_rows = 0, loops = 1;
    if (!PyArg_ParseTupleAndKeywords(args, named, "s|KiiLL", (char **)names, &options.path, &skip,
                                     &options.rank, &options.ranks, &step_rows, &loops) ||
        !begin_call(self, false))
        return NULL;
    options.skip = skip;
    options.step_rows = step_rows;
    options.loops = loops;
    client *source = NULL;
    status st;
    Py_BEGIN_ALLOW_THREADS;
    st = client_replay(&options, &source);
    Py_END_ALLOW_THREADS;
    self->source = source;
    return end_open(self, st);
}

/* The next row into memory, without Python's lock. *out_bytes: what it had on the wire. An
 * interrupt counts also if it came before there was a client. */
static status take_row(reader *self, arena *memory, row *out, frame *out_head, size_t *out_bytes)
{
    if (atomic_load(&self->stop))
        return FAIL(ST_STOPPED, "interrupted");
    if (!self->message)
        TRY(wire_msg_new(&self->message));
    TRY(client_next(self->source, memory, out, out_head, self->message));
    *out_bytes = wire_msg_bytes(self->message);
    wire_msg_clear(self->message);
    return ST_OK;
}

static PyObject *next_row(PyObject *object, PyObject *unused)
{
    (void)unused;
    reader *self = (reader *)object;
    row packed;
    frame head;
    size_t bytes = 0;
    status st;
    if (!begin_call(self, true))
        return NULL;
    PyObject *values = NULL, *memory = row_memory_new();
    if (!memory) {
        self->busy = false;
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    stop_of_thread = &self->stop;
    st = take_row(self, row_memory_arena(memory), &packed, &head, &bytes);
    Py_END_ALLOW_THREADS;
    self->busy = false;
    if (st == ST_OK)
        values = row_values(&packed, &head, bytes, memory);
    else if (st == ST_END)
        values = Py_NewRef(Py_None);
    else
        raise_failure(st);
    Py_DECREF(memory);
    return values;
}

static PyObject *rejoin(PyObject *object, PyObject *args)
{
    reader *self = (reader *)object;
    const char *cursor;
    double timeout;
    if (!PyArg_ParseTuple(args, "zd", &cursor, &timeout) || !begin_call(self, true))
        return NULL;
    status st;
    Py_BEGIN_ALLOW_THREADS;
    stop_of_thread = &self->stop;
    st = atomic_load(&self->stop) ? FAIL(ST_STOPPED, "interrupted")
                                  : client_rejoin(self->source, cursor, (int)(timeout * 1e3));
    Py_END_ALLOW_THREADS;
    return end_open(self, st);
}

static PyObject *tell_welcome(PyObject *object, PyObject *unused)
{
    (void)unused;
    reader *self = (reader *)object;
    if (!begin_call(self, true))
        return NULL;
    self->busy = false;
    const char *text = client_welcome(self->source);
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject *count_recorded(PyObject *object, PyObject *unused)
{
    (void)unused;
    reader *self = (reader *)object;
    if (!begin_call(self, true))
        return NULL;
    self->busy = false;
    return Py_BuildValue("(LL)", (long long)client_rows(self->source),
                         (long long)client_left_over(self->source));
}

/* A client is freed only by close(), which refuses while another thread is in a call, so the one
 * that is interrupted here stays. */
static PyObject *interrupt(PyObject *object, PyObject *unused)
{
    (void)unused;
    reader *self = (reader *)object;
    atomic_store(&self->stop, true);
    if (self->source)
        client_interrupt(self->source);
    Py_RETURN_NONE;
}

static void free_client(reader *self)
{
    client *source = self->source;
    self->source = NULL;
    Py_BEGIN_ALLOW_THREADS;
    client_close(&source);
    wire_msg_free(&self->message);
    Py_END_ALLOW_THREADS;
}

static PyObject *close_reader(PyObject *object, PyObject *unused)
{
    (void)unused;
    reader *self = (reader *)object;
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is in a call of this Reader");
        return NULL;
    }
    free_client(self);
    Py_RETURN_NONE;
}

static void end_reader(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc free_it = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_client((reader *)object);
    free_it(object);
    Py_DECREF(type);
}

static int add_reader(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"open_daemon", (PyCFunction)(void (*)(void))open_daemon, METH_VARARGS | METH_KEYWORDS,
         "Connects to a daemon and waits for its WELCOME."},
        {"open_recording", (PyCFunction)(void (*)(void))open_recording,
         METH_VARARGS | METH_KEYWORDS, "Opens the file of a recording."},
        {"next", next_row, METH_NOARGS, "The next row, or None after the last."},
        {"rejoin", rejoin, METH_VARARGS, "Enters the stream of a daemon again after this cursor."},
        {"welcome", tell_welcome, METH_NOARGS, "WELCOME's JSON text."},
        {"recorded", count_recorded, METH_NOARGS,
         "Rows of a recording (-1: a daemon), and left over."},
        {"interrupt", interrupt, METH_NOARGS, "Ends a call that waits in another thread."},
        {"close", close_reader, METH_NOARGS, "Says BYE and frees everything."},
        {NULL, NULL, 0, NULL}};
    static PyType_Slot slots[] = {{Py_tp_dealloc, end_reader},
                                  {Py_tp_methods, methods},
                                  {Py_tp_new, PyType_GenericNew},
                                  {Py_tp_doc, (void *)"Rows of a daemon or of a recording."},
                                  {0, NULL}};
    static PyType_Spec spec = {"tessera._reader.Reader", sizeof(reader), 0, Py_TPFLAGS_DEFAULT,
                               slots};
    PyObject *type = PyType_FromSpec(&spec);
    const int added = type ? PyModule_AddObjectRef(module, "Reader", type) : -1;
    Py_XDECREF(type);
    return added;
}

PyMODINIT_FUNC PyInit__reader(void); /* for the interpreter, which finds it by its name */

PyMODINIT_FUNC PyInit__reader(void)
{
    static PyModuleDef definition = {
        PyModuleDef_HEAD_INIT, "_reader",
        "proto's own reader of rows; tessera.Rows uses it. See proto/python.md.", -1, NULL};
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    log_init("tessera", LOG_WARN, false);
    if (row_memory_types() != 0 || add_failure(module) != 0 || add_reader(module) != 0)
        Py_CLEAR(module);
    return module;
}
