// Compiles kernels of the plugin cuda by NVRTC, as a program does that generates them, and looks
// for each of the table in the PTX. Exits with 77 where there is no NVRTC.
//   test_nvrtc ARCHITECTURE INCLUDE,INCLUDE... TABLE FILE.cu...
#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr int skipped = 77;

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "nvrtc: %s\n", text.c_str());
  std::exit(1);
}

void* open_library() {
  for (const char* const name :
       {"libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so.13",
        "/usr/local/cuda/lib64/libnvrtc.so.12"}) {
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
      return library;
    }
  }
  return nullptr;
}

/// NVRTC's functions that are used here; a result is 0 if it is good.
struct Nvrtc {
  template <class F>
  static F* find(void* library, const char* name) {
    void* const found = dlsym(library, name);
    if (found == nullptr) {
      fail(std::string("the library has no ") + name);
    }
    return reinterpret_cast<F*>(found);
  }
  explicit Nvrtc(void* library)
      : version(find<int(int*, int*)>(library, "nvrtcVersion")),
        create(find<int(void**, const char*, const char*, int, const char* const*,
                        const char* const*)>(library, "nvrtcCreateProgram")),
        compile(find<int(void*, int, const char* const*)>(library, "nvrtcCompileProgram")),
        log_size(find<int(void*, std::size_t*)>(library, "nvrtcGetProgramLogSize")),
        log(find<int(void*, char*)>(library, "nvrtcGetProgramLog")),
        ptx_size(find<int(void*, std::size_t*)>(library, "nvrtcGetPTXSize")),
        ptx(find<int(void*, char*)>(library, "nvrtcGetPTX")),
        destroy(find<int(void**)>(library, "nvrtcDestroyProgram")) {}

  int (*version)(int*, int*);
  int (*create)(void**, const char*, const char*, int, const char* const*, const char* const*);
  int (*compile)(void*, int, const char* const*);
  int (*log_size)(void*, std::size_t*);
  int (*log)(void*, char*);
  int (*ptx_size)(void*, std::size_t*);
  int (*ptx)(void*, char*);
  int (*destroy)(void**);
};

std::string text_of(const std::string& path) {
  const std::ifstream file(path, std::ios::binary);
  if (!file) {
    fail(path + " cannot be read");
  }
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

std::string text_from(void* program, int (*size)(void*, std::size_t*), int (*get)(void*, char*)) {
  std::size_t count = 0;
  if (size(program, &count) != 0) {
    fail("the size of a text is not known");
  }
  std::string text(count, '\0');
  if (get(program, text.data()) != 0) {
    fail("a text cannot be had");
  }
  return text;
}

/// The PTX of a source.
std::string compiled(const Nvrtc& nvrtc, const std::string& file,
                     const std::vector<std::string>& options) {
  void* program = nullptr;
  if (nvrtc.create(&program, text_of(file).c_str(), file.c_str(), 0, nullptr, nullptr) != 0) {
    fail(file + ": no program can be made of it");
  }
  std::vector<const char*> words;
  for (const std::string& option : options) {
    words.push_back(option.c_str());
  }
  const int result = nvrtc.compile(program, static_cast<int>(words.size()), words.data());
  if (result != 0) {
    fail(file + " does not compile:\n" + text_from(program, nvrtc.log_size, nvrtc.log));
  }
  std::string ptx = text_from(program, nvrtc.ptx_size, nvrtc.ptx);
  nvrtc.destroy(&program);
  return ptx;
}

/// The names of the kernels in PTX.
void add_kernels(std::set<std::string>& names, std::string_view ptx) {
  constexpr std::string_view before = ".entry ";
  for (std::size_t at = ptx.find(before); at != std::string_view::npos; at = ptx.find(before, at)) {
    at += before.size();
    names.emplace(ptx.substr(at, ptx.find('(', at) - at));
  }
}

/// The names in plugins/cuda/kernels.table.
std::set<std::string> names_in_table(const std::string& path) {
  std::set<std::string> names;
  std::istringstream lines(text_of(path));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line[0] != '#') {
      names.insert(line.substr(0, line.find(' ')));
    }
  }
  return names;
}

}  // namespace

int main(int count, char** words) {
  if (count < 5) {
    fail("usage: test_nvrtc ARCHITECTURE INCLUDE,INCLUDE... TABLE FILE.cu...");
  }
  void* const library = open_library();
  if (library == nullptr) {
    std::puts("skipped: there is no NVRTC (pip install nvidia-cuda-nvrtc; LD_LIBRARY_PATH)");
    return skipped;
  }
  const Nvrtc nvrtc(library);
  int major = 0;
  int minor = 0;
  nvrtc.version(&major, &minor);
  std::vector<std::string> options = {std::string("--gpu-architecture=") + words[1], "-std=c++20",
                                      "-default-device", "-diag-suppress=161,186,1097"};
  std::istringstream includes(words[2]);
  for (std::string include; std::getline(includes, include, ',');) {
    options.push_back("-I" + include);
  }
  const std::set<std::string> wanted = names_in_table(words[3]);
  std::set<std::string> found;
  for (int i = 4; i < count; ++i) {
    const std::size_t before = found.size();
    add_kernels(found, compiled(nvrtc, words[i], options));
    std::printf("%s: %zu kernels by NVRTC %d.%d\n", words[i], found.size() - before, major, minor);
    std::fflush(stdout);
  }
  for (const std::string& name : wanted) {
    if (!found.contains(name)) {
      fail("there is no kernel " + name + " in the PTX");
    }
  }
  if (wanted.empty() || found.size() != wanted.size()) {
    fail("there are " + std::to_string(found.size()) + " kernels (expected " +
         std::to_string(wanted.size()) + ")");
  }
  return 0;
}
