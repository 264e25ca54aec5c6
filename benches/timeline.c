// Every kernel of a run with when it began and ended, graphs and overlapping launches included: a library that the CUDA driver loads into the program.
//
//   python3 -m pip install --target cupti nvidia-cuda-cupti==13.0.85
//   gcc -O2 -shared -fPIC benches/timeline.c -o libtimeline.so -I cupti/nvidia/cu13/include -I CUDA/include -L cupti/nvidia/cu13/lib -l:libcupti.so.13 -Wl,-rpath,'$ORIGIN'
//   TIMELINE=run.csv CUDA_INJECTION64_PATH=$PWD/libtimeline.so sala-chat bench --device cuda …
//   python3 benches/timeline.py run.csv
//
// CUDA: where cuda.h is. libcupti.so.13 has to lie beside the library. A line is begin,end,kernel,x,y,z: nanoseconds, and the grid.
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

static FILE* out;

static void CUPTIAPI wanted(uint8_t** buffer, size_t* size, size_t* records) {
    *size = 8 << 20, *records = 0;
    *buffer = aligned_alloc(64, *size);
}

static void CUPTIAPI full(CUcontext context, uint32_t stream, uint8_t* buffer, size_t size, size_t used) {
    CUpti_Activity* record = NULL;
    while (cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS) {
        if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
        const CUpti_ActivityKernel9* k = (const CUpti_ActivityKernel9*)record;
        fprintf(out, "%llu,%llu,", (unsigned long long)k->start, (unsigned long long)k->end);
        // Names of templates have commas.
        for (const char* c = k->name; *c; c++) fputc(*c == ',' ? ';' : *c, out);
        fprintf(out, ",%d,%d,%d\n", k->gridX, k->gridY, k->gridZ);
    }
    free(buffer);
}

static void end(void) {
    cuptiActivityFlushAll(1);
    fflush(out);
}

int InitializeInjection(void) {
    const char* path = getenv("TIMELINE");
    out = fopen(path ? path : "timeline.csv", "w");
    if (!out) return 0;
    cuptiActivityRegisterCallbacks(wanted, full);
    if (cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) return 0;
    atexit(end);
    return 1;
}
