// Runs fuzz targets without libFuzzer: their seeds, then random changes of these, each target in a
// process of its own.
//   test_fuzz [--seconds S] [--seed N] [NAME...]   all targets, or those named; S seconds of
//   changes each test_fuzz NAME FILE...                         these inputs, in this process
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "target.hpp"

namespace {

#if defined(__SANITIZE_ADDRESS__) || (defined(__has_feature) && __has_feature(address_sanitizer))
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

constexpr int most_seconds = sanitized ? 10 : 2;   // of a processor, for an input
constexpr rlim_t most_memory = rlim_t{512} << 20;  // for an input
constexpr std::size_t longest_input = std::size_t{4} << 20;

/// What a process that tries inputs tells the one that waits for it.
struct Shared {
  std::atomic<std::uint64_t> executed;
  std::atomic<std::uint64_t> taken;
  std::atomic<std::size_t> bytes;
  char input[longest_input];
};

void took_long(int) {
  constexpr char text[] = "fuzz: an input takes too long\n";
  static_cast<void>(write(STDERR_FILENO, text, sizeof(text) - 1));
  _exit(3);
}

void try_input(const fuzz::Target& target, const std::string& input, Shared* shared) {
  if (shared != nullptr) {
    shared->bytes.store(std::min(input.size(), longest_input));
    std::memcpy(shared->input, input.data(), shared->bytes.load());
  }
  const itimerval limit{{0, 0}, {most_seconds, 0}};
  setitimer(ITIMER_PROF, &limit, nullptr);
  const std::string refusal = fuzz::run(target, input);
  if (shared != nullptr) {
    ++shared->executed;
    shared->taken += refusal.empty() ? 1 : 0;
  } else {
    std::printf("%s: %s\n", target.name, refusal.empty() ? "taken" : refusal.c_str());
  }
}

void limit_this_process() {
  std::signal(SIGPROF, &took_long);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  if (!sanitized) {  // a sanitizer maps terabytes
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    const rlim_t all = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + most_memory;
    const rlimit memory{all, all};
    setrlimit(RLIMIT_AS, &memory);
  }
}

void try_target(const fuzz::Target& target, double seconds, std::uint64_t seed, Shared* shared) {
  const std::vector<std::string> seeds = fuzz::seeds_of(target);
  const std::vector<std::string> words = fuzz::words_of(target);
  limit_this_process();
  try_input(target, "", shared);
  for (const std::string& input : seeds) {
    try_input(target, input, shared);
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  for (std::uint64_t number = 0; elapsed() < seconds; ++number) {
    const std::uint64_t random = (seed << 40) + number;
    std::string input = seeds.empty() ? std::string() : seeds[number % seeds.size()];
    try_input(target, fuzz::mutated(std::move(input), words, random), shared);
  }
}

/// Returns whether nothing was found.
bool try_in_child(const fuzz::Target& target, double seconds, std::uint64_t seed) {
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("fuzz: mmap");
    return false;
  }
  auto* const shared = static_cast<Shared*>(memory);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    try_target(target, seconds, seed, shared);
    std::exit(0);  // with the folder of temporary files
  }
  int status = 0;
  waitpid(child, &status, 0);
  const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  std::printf("%-20s %9llu inputs, %9llu taken%s\n", target.name,
              static_cast<unsigned long long>(shared->executed.load()),
              static_cast<unsigned long long>(shared->taken.load()),
              good ? "" : ", then a finding");
  if (!good) {
    const std::string file =
        std::string("fuzz-") + target.name + "-" + std::to_string(shared->executed.load());
    std::ofstream(file, std::ios::binary)
        .write(shared->input, static_cast<std::streamsize>(shared->bytes.load()));
    std::printf("  %s %d; the input: %s\n  again: test_fuzz %s %s\n",
                WIFSIGNALED(status) ? "signal" : "exit code",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
                std::filesystem::absolute(file).c_str(), target.name, file.c_str());
  }
  munmap(memory, sizeof(Shared));
  return good;
}

void try_files(const fuzz::Target& target, const std::vector<std::string>& files) {
  limit_this_process();
  for (const std::string& file : files) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) {
      std::fprintf(stderr, "fuzz: %s cannot be read\n", file.c_str());
      std::exit(2);
    }
    try_input(target, {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()},
              nullptr);
  }
}

}  // namespace

namespace {

/// A folder for the files of all targets, also of those whose process ends by a finding.
class OwnTemporaryFolder {
 public:
  OwnTemporaryFolder() {
    path_ = (std::filesystem::temp_directory_path() / "tessera-fuzz-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr || setenv("TMPDIR", path_.c_str(), 1) != 0) {
      std::perror("fuzz: no folder for temporary files (TMPDIR)");
      std::exit(2);
    }
  }
  OwnTemporaryFolder(const OwnTemporaryFolder&) = delete;
  OwnTemporaryFolder& operator=(const OwnTemporaryFolder&) = delete;
  ~OwnTemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  std::string path_;
};

}  // namespace

int main(int count, char** arguments) {
  const OwnTemporaryFolder temporary;
  double seconds = 0;
  std::uint64_t seed = 1;
  std::vector<const fuzz::Target*> chosen;
  std::vector<std::string> files;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if ((argument == "--seconds" || argument == "--seed") && i + 1 < count) {
      (argument == "--seed" ? seed = std::strtoull(arguments[i + 1], nullptr, 10)
                            : seconds = std::strtod(arguments[i + 1], nullptr));
      ++i;
    } else if (const fuzz::Target* const target = fuzz::find_target(argument); target != nullptr) {
      chosen.push_back(target);
    } else if (chosen.size() == 1) {
      files.push_back(argument);
    } else {
      std::fprintf(stderr, "fuzz: there is no target '%s'; there are:", argument.c_str());
      for (const fuzz::Target* const one : fuzz::targets()) {
        std::fprintf(stderr, " %s", one->name);
      }
      std::fputs("\n", stderr);
      return 2;
    }
  }
  if (!files.empty()) {
    try_files(*chosen.front(), files);
    return 0;
  }
  if (chosen.empty()) {
    chosen = fuzz::targets();
  }
  bool good = true;
  for (const fuzz::Target* const target : chosen) {
    good = try_in_child(*target, seconds, seed) && good;
  }
  return good ? 0 : 1;
}
