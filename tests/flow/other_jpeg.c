/* other_jpeg.c: for LD_PRELOAD, a libjpeg of another make: its transform is the fast one, so that
 * most pictures come out a little different, as from another version or build of the library. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

boolean jpeg_start_decompress(j_decompress_ptr j)
{
    static boolean (*real)(j_decompress_ptr);
    if (!real) { /* it came with a module: not behind this one, where RTLD_NEXT looks */
        void *library = dlopen("libjpeg.so.62", RTLD_LAZY | RTLD_NOLOAD);
        *(void **)&real = library ? dlsym(library, "jpeg_start_decompress") : NULL;
        if (!real)
            abort();
    }
    j->dct_method = JDCT_IFAST;
    return real(j);
}
