// Generated code, compiled by a compiler of the user's and kept in the cache.
module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>
module tessera.execute;

import tessera.base;
import tessera.plugin;
import tessera.cache;
import tessera.ops;
import tessera.program;
import :compiler;

namespace tessera::graph {
namespace {

namespace fs = std::filesystem;

constexpr int least_version = 19;

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

/// Writes a file, and the folders that it is in; whether it could.
bool write(const fs::path& file, std::string_view text) {
  std::error_code ignored;
  fs::create_directories(file.parent_path(), ignored);
  return write_file(file.string(), text).empty();
}

constexpr const char* otherwise = "the executor is planned";

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

/// Compiles a source into a library. Its folder also gets what is included.
CompileOutcome compile(const Compiler& compiler, const std::string& source, const fs::path& made) {
  const fs::path folder = made.parent_path();
  const fs::path code = folder / "code.cpp";
  bool written = write(code, source);
  for (const ops::SourceFile& header : ops::element_headers()) {
    written = written && write(folder / header.path, header.text);
  }
  if (!written) {
    return {.missing = fmt::format("cannot write into {}", folder.string())};
  }
  const ProgramResult output =
      run_program(command_of(compiler, code, made), Patience(),
                  fmt::format("compiled kernels: {} compiles", compiler.command), otherwise);
  if (output.late) {
    return {.missing = fmt::format("{} did not compile them within {:.4g} s", compiler.command,
                                   wait_limit()),
            .late = true};
  }
  if (output.output.find("No space left on device") != std::string::npos) {
    return {.missing = fmt::format("no space is left in {}", folder.parent_path().string())};
  }
  if (output.code != 0) {
    const std::size_t at = output.output.find("error:");
    fail({.thing = "compiled kernels",
          .wrong = fmt::format(
              "{} refuses the generated code: {}", compiler.command,
              first_line(at == std::string::npos ? output.output : output.output.substr(at + 7))),
          .advice = "correct Op::element of the operator, or set graph.executor to planned"});
  }
  return {};
}

/// All that the library of a source depends on.
std::string key_of(const std::string& source, const Compiler& compiler) {
  std::string all = compiler.version + fmt::format("{}", fmt::join(options, " ")) +
                    std::string(ops::element_options());
  for (const ops::SourceFile& header : ops::element_headers()) {
    all += header.text;
  }
  return all + source;
}

GeneratedLibrary loaded(const std::string& source, const Compiler& compiler) {
  GeneratedLibrary found;
  found.missing = use_cached_code(
      {.key = key_of(source, compiler),
       .extension = "so",
       .is_executed = true,
       .otherwise = otherwise,
       .make = [&](const std::string& file) { return compile(compiler, source, file); },
       .use = [&](const std::string& file) -> std::string {
         try {
           found.library = std::make_shared<const plugin::FunctionLibrary>(file);
         } catch (const Error& error) {
           if (error.fields().wrong.starts_with("cannot be loaded")) {
             return error.what();
           }
           throw;
         }
         return "";
       }});
  return found;
}

}  // namespace

const Compiler& find_compiler() {
  static const Compiler compiler = found_compiler();
  return compiler;
}

GeneratedLibrary generated_library(const std::string& source) {
  static std::mutex mutex;  // ranks that are threads
  static std::map<std::string, GeneratedLibrary> libraries;
  const Compiler& compiler = find_compiler();
  if (!compiler.missing.empty()) {
    return {.missing = compiler.missing};
  }
  const std::lock_guard guard(mutex);
  GeneratedLibrary& known = libraries[source];
  if (known.library == nullptr && known.missing.empty()) {
    known = loaded(source, compiler);
  }
  return known;
}

}  // namespace tessera::graph
