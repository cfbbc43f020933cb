// Generated code: compiled once and kept in a folder of the user's.
module;
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/content_hash.hpp>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.plugin;
import tessera.ops;
import :compiler;

namespace tessera::graph {
namespace {

namespace fs = std::filesystem;

/// The cache cannot be used; nothing is wrong with the code.
class CacheError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

constexpr int least_version = 19;
constexpr std::size_t most_kept = 200;

std::string quoted_for_shell(const std::string& text) {
  std::string all = "'";
  for (const char c : text) {
    all += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return all + "'";
}

struct Output {
  int status = -1;
  std::string text;
};

/// What a command of the shell prints, errors included.
Output run_command(const std::string& command) {
  Output output;
  FILE* const pipe = popen((command + " 2>&1 </dev/null").c_str(), "re");
  if (pipe == nullptr) {
    return output;
  }
  std::array<char, 4096> buffer{};
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.text.append(buffer.data(), got);
  }
  output.status = pclose(pipe);
  return output;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// What is wrong with a compiler; "": nothing.
std::string unfit(const Output& version) {
  if (version.status != 0) {
    return "cannot be run";
  }
  constexpr std::string_view mark = "clang version ";
  const std::size_t at = version.text.find(mark);
  int major = 0;
  if (at != std::string::npos) {
    const char* const begin = version.text.data() + at + mark.size();
    std::from_chars(begin, version.text.data() + version.text.size(), major);
  }
  return major >= least_version ? std::string()
                                : fmt::format("is no clang of version {} or later (it says '{}')",
                                              least_version, first_line(version.text));
}

Compiler found_compiler() {
  std::vector<std::string> commands = {TESSERA_COMPILER, "clang++-19", "clang++"};
  if (const auto wanted = environment_variable("TESSERA_CXX")) {
    commands = {*wanted};
  }
  std::string why;
  for (const std::string& command : commands) {
    const Output version = run_command(quoted_for_shell(command) + " --version");
    const std::string wrong = unfit(version);
    if (wrong.empty()) {
      return {.command = command, .version = first_line(version.text)};
    }
    why += fmt::format("{}{} {}", why.empty() ? "" : ", ", command, wrong);
  }
  return {.missing = fmt::format("there is no compiler: {}; install clang-{} or set TESSERA_CXX",
                                 why, least_version)};
}

/// The folder of the cache, made where it is not there. CacheError: it cannot be made or used.
fs::path cache_folder() {
  fs::path folder = environment_variable("TESSERA_KERNEL_CACHE").value_or("");
  if (folder.empty()) {
    // The XDG specification: a relative path is invalid and ignored.
    const std::string cache = environment_variable("XDG_CACHE_HOME").value_or("");
    const std::string home = environment_variable("HOME").value_or("");
    if (!cache.starts_with('/') && !home.starts_with('/')) {
      throw CacheError("there is no folder for compiled code; set TESSERA_KERNEL_CACHE");
    }
    folder = (cache.starts_with('/') ? fs::path(cache) : fs::path(home) / ".cache") / "tessera" /
             "kernels";
  }
  std::error_code error;
  if (fs::create_directories(folder, error)) {
    fs::permissions(folder, fs::perms::owner_all, error);
  }
  if (error || access(folder.c_str(), W_OK | X_OK) != 0) {
    throw CacheError(
        fmt::format("{} cannot be written; set TESSERA_KERNEL_CACHE", folder.string()));
  }
  return fs::absolute(folder);
}

std::string read(const fs::path& file) {
  std::ostringstream bytes;
  bytes << std::ifstream(file, std::ios::binary).rdbuf();
  return std::move(bytes).str();
}

void write(const fs::path& file, std::string_view text) {
  std::error_code ignored;
  fs::create_directories(file.parent_path(), ignored);
  if (!write_file(file.string(), text).empty()) {
    throw CacheError(fmt::format("cannot write {}", file.string()));
  }
}

std::string hash_of(std::string_view text) {
  return content_hash(std::as_bytes(std::span(text.data(), text.size())));
}

/// Holds a lock while it lives; processes that end without releasing it leave none.
class Lock {
 public:
  explicit Lock(const fs::path& file)
      : descriptor_(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (descriptor_ < 0 || flock(descriptor_, LOCK_EX) != 0) {
      throw CacheError(fmt::format("cannot lock {}", file.string()));
    }
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() { close(descriptor_); }

 private:
  int descriptor_;
};

/// A folder that goes away with its content.
class Scratch {
 public:
  explicit Scratch(fs::path folder) : folder_(std::move(folder)) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    remove_folder(folder_.string(), [](const std::string&) { return true; });
  }
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

const std::string options = "-std=c++20 -O3 -w -fPIC -shared";

void compile(const Compiler& compiler, const std::string& source, const fs::path& library) {
  const Scratch scratch(fs::path(library).replace_extension(fmt::format("{}.parts", getpid())));
  for (const ops::SourceFile& header : ops::element_headers()) {
    write(scratch.folder() / header.path, header.text);
  }
  const fs::path code = scratch.folder() / "code.cpp";
  const fs::path made = scratch.folder() / "code.so";
  write(code, source);
  const Output output = run_command(
      fmt::format("{} {} {} -I {} {} -o {}", quoted_for_shell(compiler.command), options,
                  ops::element_options(), quoted_for_shell(scratch.folder().string()),
                  quoted_for_shell(code.string()), quoted_for_shell(made.string())));
  if (output.text.find("No space left on device") != std::string::npos) {
    throw CacheError(fmt::format("no space is left in {}", library.parent_path().string()));
  }
  if (output.status != 0) {
    const std::size_t at = output.text.find("error:");
    fail({.thing = "compiled kernels",
          .wrong = fmt::format(
              "{} refuses the generated code: {}", compiler.command,
              first_line(at == std::string::npos ? output.text : output.text.substr(at + 7))),
          .advice = "correct Op::element of the operator, or set graph.executor to planned"});
  }
  // In this order, so that a library without its hash is one that was not finished.
  const std::string bytes = read(made);
  fs::permissions(made, fs::perms::owner_all);
  fs::rename(made, library);
  const fs::path sum = scratch.folder() / "code.sum";
  write(sum, hash_of(bytes));
  fs::rename(sum, fs::path(library).replace_extension("sum"));
}

/// Keeps the libraries that were used last.
void remove_old(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, fs::path>> libraries;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".so") {
      libraries.emplace_back(entry.last_write_time(), entry.path());
    }
  }
  if (libraries.size() <= most_kept) {
    return;
  }
  std::ranges::sort(libraries, std::greater());
  for (const auto& [time, library] : std::span(libraries).subspan(most_kept)) {
    std::error_code ignored;
    for (const char* const kind : {"so", "sum", "lock"}) {
      fs::remove(fs::path(library).replace_extension(kind), ignored);
    }
  }
}

std::shared_ptr<const plugin::FunctionLibrary> loaded(const std::string& source,
                                                      const Compiler& compiler) {
  std::string all = compiler.version + options + ops::element_options();
  for (const ops::SourceFile& header : ops::element_headers()) {
    all += header.text;
  }
  const fs::path folder = cache_folder();
  const fs::path library = folder / (hash_of(all + source) + ".so");
  const Lock lock(fs::path(library).replace_extension("lock"));
  const std::string sum = read(fs::path(library).replace_extension("sum"));
  if (sum.empty() || hash_of(read(library)) != sum) {
    compile(compiler, source, library);
    try_side_work(SideWork::upkeep, "kernel cache", [&] { remove_old(folder); });
  } else {
    std::error_code ignored;
    fs::last_write_time(library, fs::file_time_type::clock::now(), ignored);
  }
  return std::make_shared<const plugin::FunctionLibrary>(library.string());
}

}  // namespace

const Compiler& find_compiler() {
  static const Compiler compiler = found_compiler();
  return compiler;
}

GeneratedLibrary generated_library(const std::string& source) {
  static std::mutex mutex;  // ranks that are threads
  static std::map<std::string, std::shared_ptr<const plugin::FunctionLibrary>> libraries;
  const Compiler& compiler = find_compiler();
  if (!compiler.missing.empty()) {
    return {.missing = compiler.missing};
  }
  const std::lock_guard guard(mutex);
  auto& library = libraries[source];
  try {
    if (!library) {
      library = loaded(source, compiler);
    }
  } catch (const CacheError& error) {
    return {.missing = error.what()};
  } catch (const fs::filesystem_error& error) {
    return {.missing = error.what()};
  }
  return {.library = library};
}

}  // namespace tessera::graph
