/* SPDX-License-Identifier: Apache-2.0 */
/* other_jpeg.c: preloaded (LD_PRELOAD), it makes libjpeg use its fast transform, so that most
 * pictures come out slightly different, as with another version or build of the library. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

boolean jpeg_start_decompress(j_decompress_ptr reader)
{
    static boolean (*real)(j_decompress_ptr);
    if (!real) { /* a module has loaded libjpeg, so RTLD_NEXT does not find it */
        void *library = dlopen("libjpeg.so.62", RTLD_LAZY | RTLD_NOLOAD);
        *(void **)&real = library ? dlsym(library, "jpeg_start_decompress") : NULL;
        if (!real)
            abort();
    }
    reader->dct_method = JDCT_IFAST;
    return real(reader);
}
