/* reader_module.c: the module tessera._reader (reader_parts.h). */
#include "common/program/log.h"
#include "proto/python/extension/reader_parts.h"

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
    if (row_memory_types() != 0 || reader_failure_add(module) != 0 || reader_type_add(module) != 0)
        Py_CLEAR(module);
    return module;
}
