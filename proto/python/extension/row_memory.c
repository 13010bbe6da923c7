/* row_memory.c: the memory that a row's arrays lie in (reader_parts.h).
 *
 * A row is decoded into an arena. Each of its arrays is a view that holds a reference to the
 * arena's owner. Once no array is left, the arena goes to a short list for the rows to come;
 * without it the kernel would have to give and clear new pages for every row, which costs more than
 * opening it. All of this happens with Python's lock held. */
#include "proto/python/extension/reader_parts.h"

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

int row_memory_types(void)
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

PyObject *row_memory_new(void)
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

arena *row_memory_arena(PyObject *memory)
{
    return &((row_memory *)memory)->memory;
}

PyObject *row_memory_view(PyObject *memory, void *data, size_t bytes)
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
