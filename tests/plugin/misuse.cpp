// What a Host refuses: places, owners, contents, behaviour.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "skip.hpp"
#include "support.hpp"
#include "texts.hpp"
#include "trust.hpp"

import tessera.base;
import tessera.plugin;

#include "greeter.hpp"

using namespace tessera;
using tessera::testing::has;
namespace fs = std::filesystem;

namespace {

plugin::SearchOptions only(const std::string& path) { return {{path}, false, false}; }

/// The text of the input error that loading ends with; "" when it is loaded.
std::string refusal_of(const std::string& path) {
  plugin::declare_kind<Greeter>();  // whichever test runs first
  plugin::Host host({{}, false, false});
  try {
    host.load(path);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::input);
    CHECK(host.loaded().empty());
    CHECK(host.names("greeter").empty());
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a library that others can change is refused with the command that mends it") {
  const PluginFolder folder;
  const std::string file = folder.copy("Hello", "a.so");
  CHECK(refusal_of(file).empty());
  chmod(file.c_str(), 0666);
  has(refusal_of(file), "can be written by others");
  has(refusal_of(file), "chmod go-w " + file);
  chmod(file.c_str(), 0644);
  chmod(folder.path().c_str(), 01777);
  has(refusal_of(file), "the folder " + folder.path().string() + " can be written by others");
  chmod(folder.path().c_str(), 0700);
  CHECK(refusal_of(file).empty());
}

TEST_CASE("a library of another user or with a foreign group's pen is refused", "[.root]") {
  if (geteuid() != 0) {
    tessera::testing::skip("only root can give a file away");
    return;
  }
  const PluginFolder folder;
  const std::string file = folder.copy("Hello", "a.so");
  REQUIRE(chown(file.c_str(), 12345, 12345) == 0);
  has(refusal_of(file), "belongs to user 12345, who is neither root nor you");
  REQUIRE(chown(file.c_str(), 0, 12345) == 0);
  CHECK(refusal_of(file).empty());
  chmod(file.c_str(), 0664);
  has(refusal_of(file), "can be written by others (mode 664, group 12345)");
}

TEST_CASE("a folder of another user is accepted only on the way to the program itself", "[.root]") {
  if (geteuid() != 0) {
    tessera::testing::skip("only root can give a folder away");
    return;
  }
  const PluginFolder folder;
  fs::create_directories(folder.path() / "prefix" / "lib");
  const std::string file = folder.copy("Hello", "prefix/lib/a.so");
  REQUIRE(chown((folder.path() / "prefix").c_str(), 12345, 0) == 0);
  has(refusal_of(file), "the folder " + (folder.path() / "prefix").string() + " belongs to user");
  plugin::Trust beside(file);  // as if it were libtessera
  CHECK(beside.check_file(file));
  CHECK(beside.refusals().empty());
  chmod((folder.path() / "prefix").c_str(), 0777);
  plugin::Trust open(file);
  open.check_file(file);
  REQUIRE(open.refusals().size() == 1);
  has(open.refusals().front(), "can be written by others");
}

TEST_CASE("a symbolic link is judged by what it leads to") {
  const PluginFolder folder;
  const PluginFolder open;
  chmod(open.path().c_str(), 0777);
  const std::string target = open.copy("Hello", "a.so");
  const fs::path link = folder.path() / "link.so";
  fs::create_symlink(target, link);
  has(refusal_of(link.string()), "the folder " + open.path().string());
}

TEST_CASE("a library below a folder that others can change is refused, however far above it is") {
  const PluginFolder folder;
  fs::create_directories(folder.path() / "mine" / "deep");
  const std::string file = folder.copy("Hello", "mine/deep/a.so");
  CHECK(refusal_of(file).empty());
  chmod(folder.path().c_str(), 0777);
  has(refusal_of(file), "the folder " + folder.path().string() + " can be written by others");
  has(refusal_of(file), "chmod go-w " + folder.path().string());
  chmod(folder.path().c_str(), 01777);  // sticky, as /tmp: others cannot replace what is in it
  CHECK(refusal_of(file).empty());
}

TEST_CASE("what is not a file is refused and does not hold us up") {
  const PluginFolder folder;
  has(refusal_of((folder.path() / "none.so").string()), "cannot be found");
  const std::string pipe = (folder.path() / "pipe.so").string();
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  has(refusal_of(pipe), "is not a plain file");
  has(refusal_of(folder.write({}, "empty.so")), "not an ELF file");
}

TEST_CASE("a damaged or foreign library is refused and never loaded") {
  const PluginFolder folder;
  Content content = content_of("Hello");
  content[content.size() / 2] ^= std::byte{4};
  has(refusal_of(folder.write(content, "flipped.so")), "content: differs from what was linked");
  content = content_of("Hello");
  content.resize(content.size() - 1);
  has(refusal_of(folder.write(content, "cut.so")), "cut");
  has(refusal_of("/lib/x86_64-linux-gnu/libm.so.6"), "not a plugin");
  const std::string flags = refusal_of(std::string(LIBRARIES) + "/OtherFlags.so");
  has(flags, "RTTI: host has on, library has off");
  has(flags, "exceptions: host has on, library has off");
  has(flags, "enum size: host has 4 bytes, library has 1 bytes");
  has(flags, "char: host has signed, library has unsigned");
}

namespace {

class NewGreeter {
 public:
  static constexpr plugin::Kind plugin_kind{"greeter", 3};
  virtual ~NewGreeter() = default;
};

}  // namespace

TEST_CASE("kinds that this host does not serve are refused") {
  const PluginFolder folder;
  const auto stamped = [&](const char* provides, const char* as) {
    return folder.write(
        with_stamp(content_of("Hello"),
                   [&](plugin::GateStamp& stamp) { std::strcpy(stamp.provides, provides); }),
        as);
  };
  has(refusal_of(stamped("gretter:Hello", "kind.so")), "did you mean 'greeter'?");
  // A kind of a program's own, whose interface is not in Tessera's fingerprint, has a version.
  plugin::Registrar registrar("Hello", "hello.so");
  registrar.add<NewGreeter>("Hello", [] { return std::unique_ptr<NewGreeter>(); });
  const std::vector<std::string> refusals =
      plugin::refused_entries(*plugin::read_stamp(content_of("Hello")).stamp, registrar.entries());
  REQUIRE(!refusals.empty());
  CHECK(refusals.front() == "greeter 'Hello': host has version 2 of the interface, library has 3");
}

TEST_CASE("plugins of kinds that have become another one are refused with the lines to change") {
  const std::string refusal = refusal_of(std::string(LIBRARIES) + "/OldKinds.so");
  has(refusal,
      "transform 'MeanLoss': the kind 'transform' is 'change' now; write 'KIND change' instead of "
      "'KIND transform' in its CMakeLists.txt, and 'registrar.add<graph::Change>' instead of "
      "'registrar.add<graph::Transform>' in its source");
  has(refusal, "pass 'Trim': the kind 'pass' is 'change' now; ");
  has(refusal, "instead of 'registrar.add<graph::Pass>'");
  has(refusal, "override 'Norms': the kind 'override' is 'change' now; ");
  has(refusal, "instead of 'registrar.add<Override>'");
}

TEST_CASE("a plugin that throws or breaks its promise leaves nothing registered") {
  const auto misbehaving = [](const std::string& how) {
    const PluginFolder
        folder;  // an own copy each time: a loaded file would not run its constructors again
    const Setting setting("MISBEHAVE", how);
    return refusal_of(folder.copy("Misbehaving", "m.so"));
  };
  has(misbehaving("throw in register"), "threw while it was loaded or registered: no licence");
  has(misbehaving("throw an int"), "not a std::exception");
  has(misbehaving("register more"), "greeter 'Unpromised': registered, but not promised");
  has(misbehaving("register twice"), "registered twice by one plugin");
  has(misbehaving("register nothing"), "promised by the stamp, but not registered");
  has(misbehaving("register an empty factory"), "its factory is empty");
  CHECK(misbehaving("").empty());
  has(refusal_of(std::string(LIBRARIES) + "/Undefined.so"), "nobody_defines_this");
}

TEST_CASE("two files with one name are an error that names both") {
  const PluginFolder folder;
  const std::string hello = folder.copy("Hello", "a.so");
  const std::string twin = folder.copy("Twin", "b.so");
  plugin::Host by_name(only(folder.path().string()));
  try {
    by_name.find<Greeter>("Hello");
    FAIL("found one of two");
  } catch (const Error& error) {
    has(error.what(), hello);
    has(error.what(), twin);
  }
  plugin::Host by_file({{}, false, false});
  by_file.load(hello);
  CHECK_THROWS_WITH(by_file.load(twin),
                    Catch::Contains("registered by " + hello + " and by " + twin));
  CHECK(by_file.find<Greeter>("Hello")("you")->greet() == "hello, you");
  CHECK(by_file.loaded().size() == 1);
}

TEST_CASE("a second plugin with the same name and other content is an error, not ignored") {
  const PluginFolder folder;
  plugin::declare_kind<Greeter>();
  const std::string first = folder.copy("Hello", "a.so");
  const std::string second = folder.write(
      with_stamp(content_of("Hello"),
                 [](plugin::GateStamp& stamp) { std::strcpy(stamp.version, "1.2.4"); }),
      "b.so");
  plugin::Host by_file({{}, false, false});
  by_file.load(first);
  CHECK_THROWS_WITH(by_file.load(second), Catch::Contains("plugin 'Hello' with other content") &&
                                              Catch::Contains("loaded from " + first));
  REQUIRE(by_file.loaded().size() == 1);
  CHECK(by_file.loaded().front().version == "1.2.3");

  plugin::Host by_name(only(folder.path().string()));
  CHECK_THROWS_WITH(by_name.find<Greeter>("Hello"),
                    Catch::Contains(first) && Catch::Contains(second));
  CHECK(by_name.loaded().empty());
}

TEST_CASE("a name whose only plugin is refused brings every reason") {
  const PluginFolder folder;
  Content content = content_of("Hello");
  content[content.size() / 2] ^= std::byte{4};
  const std::string file = folder.write(content, "a.so");
  chmod(file.c_str(), 0666);
  plugin::Host host(only(folder.path().string()));
  CHECK_THROWS_WITH(host.find<Greeter>("Hello"),
                    Catch::Contains(file + ": the file") && Catch::Contains("written by others") &&
                        Catch::Contains("differs from what was linked"));
  CHECK(host.loaded().empty());
}

TEST_CASE("check finds everything, whatever the library does to its process") {
  plugin::declare_kind<Greeter>();
  using std::chrono::milliseconds;
  const auto checked = [&](const std::string& how, milliseconds limit = milliseconds(60'000)) {
    const PluginFolder
        own;  // what this process has loaded already would not run its constructors again
    const std::string file = own.copy("Misbehaving", "m.so");
    const Setting setting("MISBEHAVE", how);
    const plugin::CheckReport report = plugin::check_library(file, limit);
    CHECK(report.tried);
    CHECK(report.usable() == report.found.refusals.empty());
    return report.found.refusals.empty() ? "" : report.found.refusals.front();
  };
  CHECK(checked("").empty());
  // A sanitizer turns the signal into an exit code.
  has(checked("crash in constructor"), ") while it was loaded or registered");
  has(checked("loop in constructor", milliseconds(1500)),
      "did not finish loading and registering within 1500 ms");
  has(checked("exit in constructor"), "ended its process");
#if __has_feature(thread_sanitizer)  // no exception gets through its dlopen
  has(checked("throw in constructor"), ") while it was loaded or registered");
#else
  has(checked("throw in constructor"), "no luck");
#endif
  has(checked("throw in register"), "no licence");

  const PluginFolder folder;
  const std::string bad = folder.write(with_stamp(content_of("Hello"),
                                                  [](plugin::GateStamp& stamp) {
                                                    std::strcpy(stamp.facts[4], "off");
                                                    std::strcpy(stamp.provides, "gretter:Hello");
                                                  }),
                                       "bad.so");
  chmod(bad.c_str(), 0666);
  const plugin::CheckReport all = plugin::check_library(bad);
  CHECK_FALSE(all.tried);
  CHECK(all.found.refusals.size() == 3);  // the pen, exceptions, the kind
}
