module;
#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/secret_file.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.machines;

import tessera.base;
import :run_key;
import :sockets;

namespace tessera::collective {
namespace {

constexpr const char* key_variable = "TESSERA_KEY";
constexpr const char* file_variable = "TESSERA_KEY_FILE";
constexpr std::size_t digits = 2 * RunKey::size;
constexpr std::string_view what_a_key_is = "64 hexadecimal digits";

void need_sodium() {
  static const bool ready = sodium_init() >= 0;
  require(ready, "libsodium: the system has no random numbers");
}

struct ProcessKey {
  std::mutex mutex;
  std::optional<RunKey> key;
};

ProcessKey& held() {
  static ProcessKey instance;
  return instance;
}

/// A descriptor that is closed with the object.
struct File {
  int descriptor;
  explicit File(int opened) : descriptor(opened) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor >= 0) {
      ::close(descriptor);
    }
  }
};

[[noreturn]] void refuse_file(const std::string& path, const std::string& wrong,
                              const std::string& advice = "") {
  fail_input({.thing = fmt::format("the key file '{}'", shown(path)),
              .wrong = wrong,
              .expected = advice.empty() ? "a file of this user that no other user may read" : "",
              .advice = advice.empty() ? "`chmod 600` it, or remove it: one is made" : advice});
}

/// Gives the file that is complete its name, unless there is one of that name.
bool give_name(const std::string& made, const std::string& path) {
  if (link(made.c_str(), path.c_str()) == 0) {
    unlink(made.c_str());
    return true;
  }
  // A file system without a second name for a file.
  return errno != EEXIST &&
         renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) == 0;
}

/// Makes a file with a random key, unless there is one. Nothing else ever has its name.
void write_key_file(const std::string& path) {
  std::string made = path + ".XXXXXX";
  const File file(mkostemp(made.data(), O_CLOEXEC));  // its mode is 0600
  const std::string text = RunKey::random().text() + "\n";
  const bool written =
      file.descriptor >= 0 && fchmod(file.descriptor, S_IRUSR | S_IWUSR) == 0 &&
      write(file.descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fsync(file.descriptor) == 0;
  if (!written || (!give_name(made, path) && errno != EEXIST)) {
    const std::string why = std::strerror(errno);
    unlink(made.c_str());
    refuse_file(path, fmt::format("it cannot be made ({})", why),
                "name another file in TESSERA_KEY_FILE");
  }
  unlink(made.c_str());
}

/// A folder of this user alone, made where it is missing. Whether it can be used.
bool own_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::filesystem::create_directories(folder.parent_path(), ignored);
  struct stat status{};
  const bool there = mkdir(folder.c_str(), S_IRWXU) == 0 || errno == EEXIST;
  return there && lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0 &&
         access(folder.c_str(), W_OK | X_OK) == 0;
}

/// The key of all runs of this user whose processes are on this machine alone.
RunKey user_key() {
  std::vector<std::filesystem::path> folders;
  for (const auto& [variable, within] :
       {std::pair{"XDG_CACHE_HOME", ""}, std::pair{"HOME", ".cache"}}) {
    if (const auto place = environment_variable(variable); place && place->starts_with('/')) {
      folders.push_back(std::filesystem::path(*place) / within / "tessera");
      break;
    }
  }
  folders.emplace_back(fmt::format("/tmp/tessera-{}", geteuid()));
  for (const std::filesystem::path& folder : folders) {
    if (own_folder(folder)) {
      return make_key_file((folder / "key").string());
    }
  }
  fail_input({.thing = "launch",
              .wrong = fmt::format("there is no folder of this user alone for a key (tried {})",
                                   folders.back().string()),
              .advice = "set TESSERA_KEY_FILE to a file in one"});
}

/// The key file that TESSERA_KEY_FILE names, for which others than the first process wait.
RunKey key_of_file(const std::string& path, bool first) {
  if (first) {
    return make_key_file(path);
  }
  Patience patience;
  Pause pause;
  while (true) {
    if (const std::optional<RunKey> key = read_key_file(path)) {
      return *key;
    }
    if (!patience.look([&] {
          return fmt::format("launch: machine 0 has not made the key file '{}' yet", shown(path));
        })) {
      refuse_file(path, fmt::format("machine 0 did not make it within {:.4g} s", patience.limit()),
                  "all machines must see the same file");
    }
    pause.sleep();
  }
}

/// This process's command with another number of the machine, for a shell.
std::string command_of_next() {
  const File file(open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> bytes{};
  const ssize_t got = read(file.descriptor, bytes.data(), bytes.size());
  std::string command;
  std::string_view rest(bytes.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  for (bool number = false; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    command += ' ';
    command += word == "--machine=0" ? "--machine=1" : shell_word(number ? "1" : word);
    number = word == "--machine" && rest.starts_with(std::string_view("0\0", 2));
  }
  return command;
}

/// Prints a key that nobody else has yet. Not a line of the log, which may be kept.
void tell_key(const RunKey& key) {
  const std::string line = fmt::format(
      "the key of this run; start the other machines with it, each with its number: {}={}{}\n",
      key_variable, key.text(), command_of_next());
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

RunKey find_key(const KeyRequest& request) {
  if (const auto path = environment_variable(file_variable)) {
    return key_of_file(*path, request.first);
  }
  if (is_local_host(request.host)) {
    return user_key();
  }
  if (!request.first || !request.tells) {
    fail_input({.thing = "launch",
                .wrong = "this process has no key, by which the processes of a run know each other",
                .advice = fmt::format(
                    "set {} to what machine 0 prints, or {} on all to one file that all see; the "
                    "first process makes it",
                    key_variable, file_variable)});
  }
  const RunKey key = RunKey::random();
  tell_key(key);
  return key;
}

}  // namespace

RunKey RunKey::random() {
  need_sodium();
  Bytes bytes;
  randombytes_buf(bytes.data(), bytes.size());
  return RunKey(bytes);
}

RunKey RunKey::parse(const std::string& thing, std::string_view text) {
  need_sodium();
  Bytes bytes{};
  std::size_t got = 0;
  if (text.size() != digits ||
      sodium_hex2bin(bytes.data(), bytes.size(), text.data(), text.size(), nullptr, &got,
                     nullptr) != 0 ||
      got != bytes.size()) {
    fail_input({.thing = thing,
                .wrong = "not a key",
                .expected = std::string(what_a_key_is),
                .got = count_text(static_cast<std::int64_t>(text.size()), "character"),
                .advice = "`openssl rand -hex 32` prints one"});
  }
  return RunKey(bytes);
}

std::string RunKey::text() const {
  std::array<char, digits + 1> text{};
  sodium_bin2hex(text.data(), text.size(), bytes_.data(), bytes_.size());
  return text.data();
}

RunKey RunKey::derived(std::string_view purpose) const {
  need_sodium();
  const std::string text = fmt::format("tessera key 1 {}", purpose);
  Bytes bytes{};
  crypto_generichash(bytes.data(), bytes.size(),
                     reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                     bytes_.data(), bytes_.size());
  return RunKey(bytes);
}

std::optional<RunKey> read_key_file(const std::string& path) {
  SecretFile file = read_secret_file(path);
  if (file.missing) {
    return std::nullopt;
  }
  if (!file.wrong.empty() && !file.too_large) {
    refuse_file(path, "it " + file.wrong);
  }
  std::string_view text = file.bytes;
  while (text.ends_with('\n') || text.ends_with('\r') || text.ends_with(' ')) {
    text.remove_suffix(1);
  }
  const RunKey key = RunKey::parse(fmt::format("the key file '{}'", shown(path)), text);
  sodium_memzero(file.bytes.data(), file.bytes.size());
  return key;
}

RunKey make_key_file(const std::string& path) {
  std::optional<RunKey> key = read_key_file(path);
  if (!key) {
    write_key_file(path);
    key = read_key_file(path);
  }
  if (!key) {
    refuse_file(path, "another process has removed it");
  }
  return *key;
}

void hold_run_key(const RunKey& key) {
  const std::lock_guard guard(held().mutex);
  held().key = key;
}

void hide_run_key() {
  char* const text = std::getenv(key_variable);
  if (text == nullptr) {
    return;
  }
  const std::string copy = text;
  sodium_memzero(text, copy.size());  // /proc shows it to this user's other processes
  unsetenv(key_variable);
  if (!copy.empty()) {
    hold_run_key(RunKey::parse(key_variable, copy));
  }
}

RunKey run_key(const KeyRequest& request) {
  hide_run_key();
  {
    const std::lock_guard guard(held().mutex);
    if (held().key) {
      return *held().key;
    }
  }
  const RunKey key = find_key(request);
  hold_run_key(key);
  return key;
}

}  // namespace tessera::collective
