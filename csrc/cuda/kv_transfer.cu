// CUDA's side of the copies of KV blocks: a library of plain C functions with the runtime linked in, so that one build serves
// any torch and is loaded only where there is a GPU.
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "sloserve/kv_pack.h"

namespace sloserve {

namespace {

constexpr unsigned kThreads = 256;
// Of a kernel per multiprocessor: enough to keep the memory busy, and short of what would hold up the model's kernels.
constexpr unsigned kBlocksPerMultiprocessor = 4;

template <bool kToStaging>
__global__ void __launch_bounds__(kThreads) pack_kernel(const __grid_constant__ KvPackArgs args) {
  const unsigned thread = blockIdx.x * kThreads + threadIdx.x;
  kv_pack_lane<kToStaging>(args, thread / kKvLanes, gridDim.x * (kThreads / kKvLanes), threadIdx.x % kKvLanes);
}

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(status) + " (" +
                           std::to_string(static_cast<int>(status)) + ")");
}

}  // namespace

class Gpu {
 public:
  using Stream = cudaStream_t;
  using Event = cudaEvent_t;

  explicit Gpu(std::int64_t device) : device_(static_cast<int>(device)) {
    enter();
    check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device_), "multiprocessors");
  }

  void enter() { check(cudaSetDevice(device_), "choice of the device"); }
  Stream stream_of(void* handle) const { return static_cast<Stream>(handle); }

  // Of the highest priority: the engine waits for what they do.
  Stream new_stream() {
    int least = 0, most = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &most), "priorities");
    Stream stream = nullptr;
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, most), "a new stream");
    return stream;
  }
  void free_stream(Stream stream) noexcept {
    if (stream) cudaStreamDestroy(stream);
  }
  void finish(Stream stream) noexcept {
    if (stream) cudaStreamSynchronize(stream);
  }

  Event new_event() {
    Event event = nullptr;
    check(cudaEventCreate(&event), "a new event");
    return event;
  }
  void free_event(Event event) noexcept {
    if (event) cudaEventDestroy(event);
  }
  void record(Event event, Stream stream) { check(cudaEventRecord(event, stream), "an event"); }
  void wait(Stream stream, Event event) { check(cudaStreamWaitEvent(stream, event, 0), "a wait for an event"); }
  bool done(Event event) {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    check(status, "a copy");
    return true;
  }
  double seconds(Event begin, Event end) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "the time of a copy");
    return ms / 1e3;
  }

  unsigned char* allocate(std::int64_t bytes) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, static_cast<std::size_t>(bytes)), "staging memory");
    return static_cast<unsigned char*>(memory);
  }
  const KvPlacedRegion* upload(const std::vector<KvPlacedRegion>& regions) {
    const std::size_t bytes = regions.size() * sizeof(KvPlacedRegion);
    auto* memory = allocate(static_cast<std::int64_t>(bytes));
    check(cudaMemcpy(memory, regions.data(), bytes, cudaMemcpyHostToDevice), "the regions");
    return reinterpret_cast<const KvPlacedRegion*>(memory);
  }
  void release(const void* memory) noexcept {
    if (memory) cudaFree(const_cast<void*>(memory));
  }

  void to_host(unsigned char* host, const unsigned char* device, std::int64_t bytes, Stream stream) {
    check(cudaMemcpyAsync(host, device, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream), "a copy to the host");
  }
  void to_device(unsigned char* device, const unsigned char* host, std::int64_t bytes, Stream stream) {
    check(cudaMemcpyAsync(device, host, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream), "a copy to the device");
  }

  template <bool kToStaging>
  void pack(const KvPackArgs& args, Stream stream) {
    constexpr std::uint32_t kWarps = kThreads / kKvLanes;
    const std::uint32_t wanted = (kv_items(args) + kWarps - 1) / kWarps;
    const std::uint32_t most = static_cast<std::uint32_t>(multiprocessors_) * kBlocksPerMultiprocessor;
    pack_kernel<kToStaging><<<wanted < most ? wanted : most, kThreads, 0, stream>>>(args);
    check(cudaGetLastError(), "the kernel that packs blocks");
  }

 private:
  int device_;
  int multiprocessors_ = 1;
};

}  // namespace sloserve

#include "sloserve/kv_abi.h"
