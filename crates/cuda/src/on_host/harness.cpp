// Runs one launch of a kernel on the memory of a file: harness MEMORY BYTES LAUNCH
// LAUNCH is a file: seven 32-bit numbers (blocks along x and y, threads, bytes of shared memory,
// whether blocks wait for each other, whether they are clusters, bytes of the arguments), then the
// arguments.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {

template <typename Arguments>
void run_block_thread(void (*kernel)(Arguments), const Arguments& arguments, host::Block* block,
                      host::Index of, unsigned thread) {
  host::block = block;
  blockIdx = of;
  threadIdx = {thread, 0, 0};
  kernel(arguments);
}

template <typename Arguments>
void launch(void (*kernel)(Arguments), const unsigned* numbers, const void* bytes) {
  const unsigned x_blocks = numbers[0], y_blocks = numbers[1], threads = numbers[2];
  const bool at_once = numbers[4] != 0, clusters = numbers[5] != 0;
  if (numbers[6] != sizeof(Arguments)) {
    std::fprintf(stderr, "%u bytes of arguments; the kernel has %zu\n", numbers[6],
                 sizeof(Arguments));
    std::exit(2);
  }
  Arguments arguments;
  std::memcpy(&arguments, bytes, sizeof arguments);
  gridDim = {x_blocks, y_blocks, 1};
  blockDim = {threads, 1, 1};

  std::vector<std::unique_ptr<host::Cluster>> of_clusters;
  std::vector<std::unique_ptr<host::Block>> blocks;
  std::vector<std::thread> running;
  for (unsigned y = 0; y < y_blocks; ++y) {
    of_clusters.push_back(std::make_unique<host::Cluster>(x_blocks * threads));
    host::Cluster* cluster = of_clusters.back().get();
    for (unsigned x = 0; x < x_blocks; ++x) {
      blocks.push_back(
          std::make_unique<host::Block>(threads, numbers[3], clusters ? cluster : nullptr));
      cluster->blocks.push_back(blocks.back().get());
    }
  }
  for (unsigned y = 0; y < y_blocks; ++y)
    for (unsigned x = 0; x < x_blocks; ++x) {
      host::Block* block = blocks[y * x_blocks + x].get();
      for (unsigned thread = 0; thread < threads; ++thread)
        running.emplace_back(run_block_thread<Arguments>, kernel, std::cref(arguments), block,
                             host::Index{x, y, 0}, thread);
      if (!at_once) {
        for (std::thread& one : running) one.join();
        running.clear();
      }
    }
  for (std::thread& one : running) one.join();
}

}  // namespace

int main(int, char** arguments) {
  // A launch whose blocks wait for each other in vain ends.
  alarm(120);
  const size_t bytes = std::strtoull(arguments[2], nullptr, 10);
  const int memory = open(arguments[1], O_RDWR);
  void* base = reinterpret_cast<void*>(BASE);
  if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0) != base) {
    std::perror("mmap");
    return 2;
  }
  std::FILE* file = std::fopen(arguments[3], "rb");
  unsigned numbers[7];
  unsigned char launched[256];
  if (std::fread(numbers, sizeof numbers, 1, file) != 1 || numbers[6] > sizeof launched ||
      std::fread(launched, numbers[6], 1, file) != 1)
    return 2;
  launch(KERNEL, numbers, launched);
  return 0;
}
