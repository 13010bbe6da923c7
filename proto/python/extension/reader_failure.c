/* reader_failure.c: a status as an exception of Python (reader_parts.h). */
#include "proto/python/extension/reader_parts.h"

static PyObject *failure;

int reader_failure_add(PyObject *module)
{
    failure = PyErr_NewExceptionWithDoc("tessera._reader.Failure",
                                        "What proto's reader reports: (code, words).", NULL, NULL);
    return failure ? PyModule_AddObjectRef(module, "Failure", failure) : -1;
}

PyObject *reader_failure_raise(status code)
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
