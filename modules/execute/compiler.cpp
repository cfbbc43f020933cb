// Generated code: compiled once and kept in a folder of the user's.
module;
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
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
module tessera.execute;

import tessera.base;
import tessera.plugin;
import tessera.ops;
import tessera.program;
import :compiler;

namespace tessera::graph {
namespace {

namespace fs = std::filesystem;

/// The cache cannot be used; nothing is wrong with the code.
class CacheError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Somebody was waited for in vain: whoever comes next need not wait as long again.
class WaitedInVain : public CacheError {
 public:
  using CacheError::CacheError;
};

constexpr int least_version = 19;
constexpr std::size_t most_kept = 200;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Fault of a compiler; "": none.
std::string unfit(const ProgramResult& version) {
  if (version.late) {
    return "does not say its version";
  }
  if (version.code != 0) {
    return "cannot be run";
  }
  constexpr std::string_view mark = "clang version ";
  const std::size_t at = version.output.find(mark);
  int major = 0;
  if (at != std::string::npos) {
    const char* const begin = version.output.data() + at + mark.size();
    std::from_chars(begin, version.output.data() + version.output.size(), major);
  }
  return major >= least_version ? std::string()
                                : fmt::format("is no clang of version {} or later (it says '{}')",
                                              least_version, first_line(version.output));
}

Compiler found_compiler() {
  std::vector<std::string> commands = {TESSERA_COMPILER, "clang++-19", "clang++"};
  if (const auto wanted = environment_variable("TESSERA_CXX")) {
    commands = {*wanted};
  }
  std::string why;
  for (const std::string& command : commands) {
    const ProgramResult version =
        run_program({command, "--version"}, Patience(), command + ": it is asked for its version",
                    "kernels are not compiled");
    const std::string wrong = unfit(version);
    if (wrong.empty()) {
      return {.command = command, .version = first_line(version.output)};
    }
    why += fmt::format("{}{} {}", why.empty() ? "" : ", ", command, wrong);
  }
  return {.missing = fmt::format("there is no compiler: {}; install clang-{} or set TESSERA_CXX",
                                 why, least_version)};
}

/// Where the cache is. CacheError: nothing says where.
fs::path cache_place() {
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
  return fs::absolute(folder);
}

/// Error (input): others could change what is in the folder.
void check_trusted(const fs::path& folder) {
  if (const std::string why = plugin::refusal_of_folder(folder.string()); !why.empty()) {
    fail_input({.thing = "the cache of compiled kernels",
                .wrong = why,
                .expected = "a folder that only you and root can change",
                .advice = "or name another one in TESSERA_KERNEL_CACHE"});
  }
}

/// The folder of the cache, made where it is not there. CacheError: it cannot be made or used.
/// Error (input): others could change it.
fs::path cache_folder() {
  fs::path folder = cache_place();
  check_trusted(folder);  // before anything is made in it
  std::error_code error;
  if (fs::create_directories(folder, error)) {
    fs::permissions(folder, fs::perms::owner_all, error);
    check_trusted(folder);
  }
  if (error || access(folder.c_str(), W_OK | X_OK) != 0) {
    throw CacheError(
        fmt::format("{} cannot be written; set TESSERA_KERNEL_CACHE", folder.string()));
  }
  struct statvfs system{};
  if (statvfs(folder.c_str(), &system) == 0 && (system.f_flag & ST_NOEXEC) != 0) {
    throw CacheError(
        fmt::format("{} is on a file system from which no code is loaded (noexec); set "
                    "TESSERA_KERNEL_CACHE",
                    folder.string()));
  }
  return folder;
}

/// The bytes of a plain file; none of anything else, which is not opened: a pipe would block.
std::string read(const fs::path& file) {
  std::ostringstream bytes;
  std::error_code ignored;
  if (!fs::is_regular_file(fs::symlink_status(file, ignored))) {
    return "";
  }
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

/// Locks a library: of several processes that need it, one compiles it, and the others wait.
void lock(FileLock& file) {
  Patience patience;
  const FileLock::State state = file.take(patience, "compiled kernels", "the executor is planned");
  if (state == FileLock::State::held) {
    file.sign();
  } else if (state == FileLock::State::busy) {
    throw WaitedInVain(fmt::format("{} has had the lock {} for {:.4g} s", file.holder(),
                                   file.path(), patience.limit()));
  } else {
    throw CacheError(fmt::format("cannot lock {} ({})", file.path(), file.problem()));
  }
}

/// A fresh folder beside a file, which goes away with its content.
class Scratch {
 public:
  explicit Scratch(const fs::path& beside) {
    std::string name = beside.string() + ".XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      throw CacheError(fmt::format("cannot make a folder in {} ({})", beside.parent_path().string(),
                                   std::strerror(errno)));
    }
    folder_ = name;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    remove_folder(folder_.string(), [](const std::string&) { return true; });
  }
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

const std::vector<std::string> options = {"-std=c++20", "-O3", "-w", "-fPIC", "-shared"};

std::vector<std::string> command_of(const Compiler& compiler, const fs::path& code,
                                    const fs::path& made) {
  std::vector<std::string> words = {compiler.command};
  words.insert(words.end(), options.begin(), options.end());
  std::istringstream more{std::string(ops::element_options())};
  words.insert(words.end(), std::istream_iterator<std::string>(more), {});
  words.insert(words.end(),
               {"-I", code.parent_path().string(), code.string(), "-o", made.string()});
  return words;
}

void compile(const Compiler& compiler, const std::string& source, const fs::path& library) {
  const Scratch scratch(library);
  for (const ops::SourceFile& header : ops::element_headers()) {
    write(scratch.folder() / header.path, header.text);
  }
  const fs::path code = scratch.folder() / "code.cpp";
  const fs::path made = scratch.folder() / "code.so";
  write(code, source);
  const ProgramResult output = run_program(
      command_of(compiler, code, made), Patience(),
      fmt::format("compiled kernels: {} compiles", compiler.command), "the executor is planned");
  if (output.late) {
    throw WaitedInVain(
        fmt::format("{} did not compile them within {:.4g} s", compiler.command, wait_limit()));
  }
  if (output.output.find("No space left on device") != std::string::npos) {
    throw CacheError(fmt::format("no space is left in {}", library.parent_path().string()));
  }
  if (output.code != 0) {
    const std::size_t at = output.output.find("error:");
    fail({.thing = "compiled kernels",
          .wrong = fmt::format(
              "{} refuses the generated code: {}", compiler.command,
              first_line(at == std::string::npos ? output.output : output.output.substr(at + 7))),
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
  std::string all = compiler.version + fmt::format("{}", fmt::join(options, " ")) +
                    std::string(ops::element_options());
  for (const ops::SourceFile& header : ops::element_headers()) {
    all += header.text;
  }
  const fs::path folder = cache_folder();
  const fs::path library = folder / (hash_of(all + source) + ".so");
  FileLock one_at_a_time = FileLock::of_file(fs::path(library).replace_extension("lock").string());
  lock(one_at_a_time);
  const std::string sum = read(fs::path(library).replace_extension("sum"));
  if (sum.empty() || hash_of(read(library)) != sum) {
    compile(compiler, source, library);
    try_side_work(SideWork::upkeep, "kernel cache", [&] { remove_old(folder); });
  } else {
    std::error_code ignored;
    fs::last_write_time(library, fs::file_time_type::clock::now(), ignored);
  }
  try {
    return std::make_shared<const plugin::FunctionLibrary>(library.string());
  } catch (const Error& error) {
    if (error.fields().wrong.starts_with("cannot be loaded")) {
      throw CacheError(error.what());
    }
    throw;
  }
}

}  // namespace

const Compiler& find_compiler() {
  static const Compiler compiler = found_compiler();
  return compiler;
}

GeneratedLibrary generated_library(const std::string& source) {
  static std::mutex mutex;  // ranks that are threads
  static std::map<std::string, GeneratedLibrary> libraries;
  static std::string waited_in_vain;
  const Compiler& compiler = find_compiler();
  if (!compiler.missing.empty()) {
    return {.missing = compiler.missing};
  }
  const std::lock_guard guard(mutex);
  GeneratedLibrary& known = libraries[source];
  if (known.library == nullptr && known.missing.empty()) {
    known.missing = waited_in_vain;
    try {
      if (known.missing.empty()) {
        known.library = loaded(source, compiler);
      }
    } catch (const WaitedInVain& error) {
      known.missing = waited_in_vain = error.what();
    } catch (const CacheError& error) {
      known.missing = error.what();
    } catch (const fs::filesystem_error& error) {
      known.missing = error.what();
    }
  }
  return known;
}

}  // namespace tessera::graph
