// Where a run's key comes from.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "folder.hpp"
#include "includes.hpp"

import tessera.base;
import tessera.collective;

using namespace tessera;
using namespace tessera::collective;
using tessera::testing::Folder;

namespace {

namespace fs = std::filesystem;

const std::string some_key(2 * RunKey::size, 'a');

/// Files that only their user may read, unless a test says otherwise.
class KeyFolder : public Folder {
 public:
  std::string write(const std::string& name, const std::string& text, mode_t mode = 0600) const {
    const std::string file = Folder::write(name, text);
    REQUIRE(chmod(file.c_str(), mode) == 0);
    return file;
  }
};

/// What a fresh process says, which has its own key and environment.
std::string in_process(const std::function<std::string()>& body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    std::string said;
    try {
      said = body();
    } catch (const Error& error) {
      said = std::string("error: ") + error.what();
    }
    const bool written = write(ends[1], said.data(), said.size()) >= 0;
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  std::string all;
  std::array<char, 4096> room{};
  for (ssize_t got = 0; (got = read(ends[0], room.data(), room.size())) > 0;) {
    all.append(room.data(), static_cast<std::size_t>(got));
  }
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return all;
}

/// The key that a process finds with these variables.
std::string key_with(const std::vector<std::pair<std::string, std::string>>& variables,
                     const KeyRequest& request) {
  return in_process([&] {
    for (const char* name : {"TESSERA_KEY", "TESSERA_KEY_FILE", "XDG_CACHE_HOME"}) {
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    return run_key(request).text();
  });
}

mode_t mode_of(const std::string& path) {
  struct stat status{};
  REQUIRE(lstat(path.c_str(), &status) == 0);
  return status.st_mode & 07777U;
}

}  // namespace

TEST_CASE("a key is 64 hexadecimal digits, and an error does not quote it") {
  CHECK(RunKey::parse("TESSERA_KEY", some_key).text() == some_key);
  const RunKey random = RunKey::random();
  CHECK(RunKey::parse("TESSERA_KEY", random.text()).text() == random.text());
  CHECK(random.text() != RunKey::random().text());
  CHECK(random.derived("a").text() != random.derived("b").text());
  CHECK(random.derived("a").text() != random.text());
  const std::string secret = "5ec4e7";
  for (const std::string& wrong :
       {std::string(), secret, some_key + "a", some_key.substr(1), some_key.substr(1) + "g",
        secret + some_key.substr(6, 57) + " "}) {
    INFO(wrong);
    try {
      RunKey::parse("TESSERA_KEY", wrong);
      FAIL("it was taken");
    } catch (const Error& error) {
      const std::string text = error.what();
      CHECK(text.find("TESSERA_KEY: not a key (expected 64 hexadecimal digits, got ") == 0);
      CHECK(text.find(secret) == std::string::npos);
      CHECK(error.kind() == ErrorKind::input);
    }
  }
}

TEST_CASE("a key file that others could read, or that is none, is refused by what is wrong") {
  const KeyFolder folder;
  CHECK(read_key_file(folder.write("key", some_key + "\n"))->text() == some_key);
  CHECK_FALSE(read_key_file(folder / "missing"));
  const auto refuses = [&](const std::string& path, const std::string& why) {
    INFO(path);
    CHECK_THROWS_WITH(read_key_file(path), Catch::Contains("the key file '" + path.substr(0, 20)) &&
                                               Catch::Contains(why));
    CHECK_THROWS_WITH(make_key_file(path), Catch::Contains(why));
  };
  refuses(folder.write("group", some_key, 0640),
          "it can be read or changed by other users (mode 640)");
  refuses(folder.write("others", some_key, 0604),
          "it can be read or changed by other users (mode 604)");
  refuses(folder.write("empty", ""),
          "not a key (expected 64 hexadecimal digits, got 0 characters)");
  refuses(folder.write("long", std::string(1 << 20, 'a')), "not a key");
  refuses(folder.write("half", some_key.substr(32)), "not a key");
  fs::create_symlink(folder / "key", folder / "link");
  refuses(folder / "link", "it is a link");
  fs::create_directory(folder / "folder");
  refuses(folder / "folder", "it is not a regular file");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  refuses(folder / "pipe", "it is not a regular file");
  if (geteuid() == 0) {
    const std::string other = folder.write("other", some_key);
    REQUIRE(chown(other.c_str(), 1, 1) == 0);
    refuses(other, "it belongs to another user");
  }
}

TEST_CASE("of many that make a key file one does, and all have its key") {
  const KeyFolder folder;
  const mode_t before = umask(0);
  std::array<std::string, 8> keys;
  {
    std::vector<std::thread> threads;
    for (std::string& key : keys) {
      threads.emplace_back([&] { key = make_key_file(folder / "key").text(); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  umask(before);
  for (const std::string& key : keys) {
    CHECK(key == keys[0]);
  }
  CHECK(mode_of(folder / "key") == 0600);
  CHECK(std::distance(fs::directory_iterator(folder / ""), fs::directory_iterator()) == 1);
}

TEST_CASE("a process takes the key from its environment, and leaves none in it") {
  const KeyFolder folder;
  const std::string file = folder.write("key", std::string(64, 'b'));
  CHECK(key_with({{"TESSERA_KEY", some_key}, {"TESSERA_KEY_FILE", file}}, {.host = "alpha"}) ==
        some_key);
  CHECK(key_with({{"TESSERA_KEY_FILE", file}}, {.host = "localhost"}) == std::string(64, 'b'));
  const std::string left = in_process([] {
    setenv("TESSERA_KEY", some_key.c_str(), 1);
    const std::string key = run_key({.host = "alpha"}).text();
    std::ifstream own("/proc/self/environ");
    std::stringstream all;
    all << own.rdbuf();
    const bool is_left =
        std::getenv("TESSERA_KEY") != nullptr || all.str().find(some_key) != std::string::npos;
    return key + (is_left ? " is left" : " is gone");
  });
  CHECK(left == some_key + " is gone");
  CHECK(key_with({{"TESSERA_KEY", "short"}}, {.host = "alpha"}).find("error: TESSERA_KEY: not a") ==
        0);
}

TEST_CASE("others wait for the key file that the first process makes") {
  const KeyFolder folder;
  const std::string file = folder / "key";
  std::string later;
  std::thread other([&] { later = key_with({{"TESSERA_KEY_FILE", file}}, {.host = "alpha"}); });
  usleep(200'000);
  CHECK_FALSE(fs::exists(file));
  const std::string first =
      key_with({{"TESSERA_KEY_FILE", file}}, {.host = "alpha", .first = true});
  other.join();
  CHECK(later == first);
  CHECK(mode_of(file) == 0600);
  CHECK(key_with({{"TESSERA_KEY_FILE", folder / "never"}, {"TESSERA_TIMEOUT", "0.2"}},
                 {.host = "alpha"})
            .find("machine 0 did not make it within 0.2 s") != std::string::npos);
}

TEST_CASE("a run on this machine alone has its user's key, and any other one must be given it") {
  const KeyFolder folder;
  const std::string home = folder / "home";
  fs::create_directory(home);
  const std::string key = key_with({{"HOME", home}}, {.host = "localhost", .first = true});
  CHECK(key.size() == some_key.size());
  CHECK(key_with({{"HOME", home}}, {.host = "127.0.0.1"}) == key);
  CHECK(key_with({{"HOME", home}}, {.host = "::1"}) == key);
  CHECK(mode_of(home + "/.cache/tessera/key") == 0600);
  CHECK(mode_of(home + "/.cache/tessera") == 0700);
  for (const bool first : {false, true}) {
    CHECK(key_with({{"HOME", home}}, {.host = "127.0.1.1.example", .first = first})
              .find("error: launch: this process has no key") == 0);
  }
  // A folder that another user can change has no key that this one trusts.
  const std::string planted = folder / "planted";
  fs::create_directories(planted + "/tessera");
  std::ofstream(planted + "/tessera/key") << some_key;
  chmod((planted + "/tessera/key").c_str(), 0600);
  const std::vector<std::pair<std::string, std::string>> there = {{"XDG_CACHE_HOME", planted}};
  REQUIRE(chmod((planted + "/tessera").c_str(), 0700) == 0);
  CHECK(key_with(there, {.host = "localhost"}) == some_key);
  REQUIRE(chmod((planted + "/tessera").c_str(), 0777) == 0);
  CHECK(key_with(there, {.host = "localhost"}) != some_key);
  fs::rename(planted + "/tessera", folder / "elsewhere");
  REQUIRE(chmod((folder / "elsewhere").c_str(), 0700) == 0);
  fs::create_directory_symlink(folder / "elsewhere", planted + "/tessera");
  CHECK(key_with(there, {.host = "localhost"}) != some_key);
}
