// The checks on a real GPU instead of the emulator: the same entry points over the CUDA driver, images from prebuilt/,
// buffers in page-locked host memory that the device addresses directly. Built by gpu.sh.
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

static char message[512];
static std::vector<CUmodule> modules;

static bool good(CUresult r, const char* what) {
    if (r == CUDA_SUCCESS) return true;
    const char* words = "unknown";
    cuGetErrorString(r, &words);
    snprintf(message, sizeof message, "%s: %s", what, words);
    return false;
}
static void must(CUresult r, const char* what) {
    if (!good(r, what)) printf("FAIL %s\n", message), exit(1);
}
static void open_device() {
    if (!modules.empty()) return;
    CUdevice device;
    CUcontext context;
    must(cuInit(0), "cuInit");
    must(cuDeviceGet(&device, 0), "cuDeviceGet");
    must(cuDevicePrimaryCtxRetain(&context, device), "context");
    must(cuCtxSetCurrent(context), "context");
    for (const char* name : {"rows", "skinny", "lightning", "sparse", "sparse_prefill", "candidates", "gemm", "draft"}) {
        modules.emplace_back();
        must(cuModuleLoad(&modules.back(), (std::string(SALA_IMAGES) + "/" + name + ".fatbin").c_str()), name);
    }
}
CUfunction find_kernel(const char* name, unsigned shared) {
    static std::map<std::string, CUfunction> known;
    CUfunction& f = known[name];
    if (!f) {
        for (CUmodule m : modules)
            if (cuModuleGetFunction(&f, m, name) == CUDA_SUCCESS) break;
        if (!f) return nullptr;
        cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100);
    }
    if (shared > 40960) must(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, int(shared)), name);
    return f;
}

extern "C" const char* sala_emulator_error() { return message; }
extern "C" void* sala_gpu_alloc(size_t bytes) {
    open_device();
    void* p;
    must(cuMemHostAlloc(&p, bytes ? bytes : 1, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP), "host memory");
    return p;
}
extern "C" void* sala_gpu_device_alloc(size_t bytes) {
    open_device();
    CUdeviceptr p;
    must(cuMemAlloc(&p, bytes), "device memory");
    return reinterpret_cast<void*>(p);
}
extern "C" int sala_emulator_launch(const char* name, const unsigned* grid, const unsigned* block, unsigned shared, void** args) {
    open_device();
    CUfunction f = find_kernel(name, shared);
    if (!f) return snprintf(message, sizeof message, "no kernel %s", name), 1;
    // Scalars are copied by the launch itself; a Step lives on the caller's stack, which the device cannot read: see check.h.
    if (!good(cuLaunchKernel(f, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, nullptr, args, nullptr), name)) return 2;
    return good(cuCtxSynchronize(), name) ? 0 : 3;
}
