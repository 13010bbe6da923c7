/* row_values.c: a decoded row as values of Python (reader_parts.h). */
#include "proto/python/extension/reader_parts.h"

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

PyObject *row_values(const row *packed, const frame *head, size_t message_bytes, PyObject *memory)
{
    PyObject *arrays = arrays_of(packed, memory);
    if (!arrays)
        return NULL;
    return Py_BuildValue("(KnN{ssssssss})", (unsigned long long)head->row,
                         (Py_ssize_t)message_bytes, arrays, "cursor", packed->cursor, "quarantine",
                         packed->quarantine, "references", packed->references, "worker",
                         packed->worker ? packed->worker : "");
}
