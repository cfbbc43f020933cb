// Gate one and the libraries that a plugin needs. Where they are searched is written into the
// files; each trial runs in a child process, as a library that is already loaded would not be
// searched.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.plugin;

using namespace tessera;
namespace fs = std::filesystem;

namespace {

/// The content of a test library whose search path is `folders`, as RUNPATH, RPATH or neither.
Content searching(const std::string& library, const std::string& folders, std::int64_t tag) {
  Content content = content_of(library);
  const std::string_view all(reinterpret_cast<const char*>(content.data()), content.size());
  const std::size_t place = all.find("/placeholder/");
  const std::size_t length = all.find('\0', place) - place;
  REQUIRE(place != all.npos);
  REQUIRE(folders.size() <= length);
  std::memset(content.data() + place, 0, length);
  std::memcpy(content.data() + place, folders.data(), folders.size());
  const auto [offset, size] = dynamic_place(content);
  for (std::size_t at = offset; at < offset + size; at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry;
    std::memcpy(&entry, content.data() + at, sizeof(entry));
    if (entry.d_tag == DT_RUNPATH) {
      entry.d_tag = tag;
      std::memcpy(content.data() + at, &entry, sizeof(entry));
    }
  }
  if (library == "Dependent") {
    stamp_again(content, stamp_offset(content));
  }
  return content;
}

constexpr std::int64_t no_path = DT_DEBUG;

/// A folder with the plugin (a.so) and folders for its libraries, none of which others can change.
struct Place {
  Place() {
    fs::create_directories(folder.path() / "upper" / "one");
    fs::create_directories(folder.path() / "upper" / "two");
    put("Dependent", "a.so", "$ORIGIN/upper/one", DT_RUNPATH);
    put("libfirst", "upper/one/libfirst.so", "${ORIGIN}/../two", DT_RUNPATH);
    put("libsecond", "upper/two/libsecond.so", "", no_path);
  }
  void put(const std::string& library, const std::string& as, const std::string& folders,
           std::int64_t tag) const {
    fs::remove(folder.path() / as);
    folder.write(searching(library, folders, tag), as);
  }
  std::string path(const std::string& name) const { return (folder.path() / name).string(); }
  void mode(const std::string& name, mode_t mode) const { chmod(path(name).c_str(), mode); }

  PluginFolder folder;
};

/// Every reason to refuse the plugin; nothing of its libraries may have run when there is one.
std::string refusals_of(const Place& place) {
  const std::string marker = place.path("marker");
  fs::remove(marker);
  const Setting setting("MARKER", marker);
  const plugin::CheckReport report = plugin::check_library(place.path("a.so"));
  std::string all;
  for (const std::string& refusal : report.found.refusals) {
    all += refusal + "\n";
  }
  CHECK(report.usable() == all.empty());
  CHECK(fs::exists(marker) == all.empty());
  return all;
}

/// Is the plugin refused with this reason, and no other?
void check_refused(const Place& place, const std::string& reason) {
  const std::string all = refusals_of(place);
  INFO("refused: " << all);
  INFO("expected: " << reason);
  CHECK(all.find(reason) != std::string::npos);
  CHECK(std::count(all.begin(), all.end(), '\n') == 1);
}

}  // namespace

TEST_CASE("a plugin whose libraries only root and the user can change is loaded with them") {
  const Place place;
  CHECK(refusals_of(place) == "");
}

TEST_CASE("a library that a plugin needs, and that others can change, refuses the plugin") {
  const Place place;
  const std::string first = "library 'libfirst.so' (needed by " + place.path("a.so") + "): ";
  const std::string second =
      "library 'libsecond.so' (needed by " + place.path("upper/one/libfirst.so") + "): ";

  place.mode("upper/one/libfirst.so", 0666);
  check_refused(place, first + "the file " + place.path("upper/one/libfirst.so") +
                           " can be written by others (mode 666");
  place.mode("upper/one/libfirst.so", 0644);

  place.mode("upper/one", 0777);
  check_refused(place, first + "the folder " + place.path("upper/one") + " can be written by");
  place.mode("upper/one", 01777);  // sticky: others can still add a library
  check_refused(place, first + "the folder " + place.path("upper/one") + " can be written by");
  place.mode("upper/one", 0755);

  place.mode("upper", 0777);
  check_refused(place, first + "the folder " + place.path("upper") + " can be written by others");
  place.mode("upper", 0755);

  // Two steps away, by the path of a library and not of the plugin.
  place.mode("upper/two", 0777);
  check_refused(place, second + "the folder " + place.path("upper/two") + " can be written by");
  place.mode("upper/two", 0755);
  CHECK(refusals_of(place) == "");
}

TEST_CASE("a folder that is searched first refuses the plugin, even if the library is elsewhere") {
  const Place place;
  const std::string found_later = ":" + place.path("upper/one");
  fs::create_directory(place.path("open"));
  place.mode("open", 0777);
  place.put("Dependent", "a.so", place.path("open") + found_later, DT_RUNPATH);
  check_refused(place, "the folder " + place.path("open") + " can be written by others");
  // Others can make a folder that does not exist.
  place.mode("open", 01777);
  place.put("Dependent", "a.so", place.path("open/missing") + found_later, DT_RUNPATH);
  check_refused(place, "the folder " + place.path("open") + " can be written by others");
  place.put("Dependent", "a.so", place.path("upper/missing") + found_later, DT_RUNPATH);
  CHECK(refusals_of(place) == "");
  // The loader prefers variants for the processor.
  fs::create_directories(place.path("upper/one/glibc-hwcaps/x86-64-v2"));
  place.mode("upper/one/glibc-hwcaps/x86-64-v2", 0777);
  place.put("Dependent", "a.so", place.path("upper/one"), DT_RUNPATH);
  check_refused(place, "the folder " + place.path("upper/one/glibc-hwcaps/x86-64-v2") + " can be");
}

TEST_CASE("search paths that depend on the working directory are refused") {
  const Place place;
  for (const std::string folder : {"", "upper/one", "./upper/one"}) {
    CAPTURE(folder);
    place.put("Dependent", "a.so", folder + ":" + place.path("upper/one"), DT_RUNPATH);
    check_refused(place, "it is searched in '" + folder + "', which depends on the working dir");
  }
  place.put("Dependent", "a.so", "/opt/$LIB:" + place.path("upper/one"), DT_RUNPATH);
  check_refused(place, "it is searched in '/opt/$LIB', of which only $ORIGIN is known");
}

TEST_CASE("an RPATH is also searched for what its libraries need, a RUNPATH is not") {
  const Place place;
  const std::string both = place.path("upper/one") + ":" + place.path("upper/two");
  place.put("libfirst", "upper/one/libfirst.so", "", no_path);
  place.put("Dependent", "a.so", both, DT_RPATH);
  CHECK(refusals_of(place) == "");
  place.mode("upper/two/libsecond.so", 0666);
  check_refused(place, "the file " + place.path("upper/two/libsecond.so") + " can be written by");
  // The loader does not find it, so nothing of it can run.
  place.put("Dependent", "a.so", both, DT_RUNPATH);
  check_refused(place, "libsecond.so: cannot open shared object file");
}

TEST_CASE("links on the way to a needed library are followed") {
  const Place place;
  fs::create_directory(place.path("open"));
  place.mode("open", 0777);
  place.put("libfirst", "open/libfirst.so", place.path("upper/two"), DT_RUNPATH);
  fs::remove(place.path("upper/one/libfirst.so"));
  fs::create_symlink("../../open/libfirst.so", place.path("upper/one/libfirst.so"));
  check_refused(place, "the folder " + place.path("open") + " can be written by others");
  // A link in a folder that others can change could lead elsewhere tomorrow.
  fs::create_symlink(place.path("upper/two"), place.path("open/link"));
  place.mode("open", 0777);
  fs::remove(place.path("upper/one/libfirst.so"));
  place.put("libfirst", "upper/one/libfirst.so", place.path("open/link"), DT_RUNPATH);
  check_refused(place, "the folder " + place.path("open") + " can be written by others");
}

TEST_CASE("a library that LD_LIBRARY_PATH finds is checked") {
  const Place place;
  fs::create_directory(place.path("open"));
  place.mode("open", 0777);
  place.put("libfirst", "open/libfirst.so", place.path("upper/two"), DT_RUNPATH);
  const Setting setting("LD_LIBRARY_PATH", place.path("upper/two") + ":" + place.path("open"));
  check_refused(place, "the folder " + place.path("open") + " can be written by others");
}
