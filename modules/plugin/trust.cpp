#include "trust.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <deque>

#include "tessera/shown.hpp"

namespace tessera::plugin {
namespace {

/// A group of this user alone: it has the user's name (as Debian and Ubuntu make it) and no further
/// members.
bool private_group(gid_t group) {
  const passwd* user = getpwuid(geteuid());
  const ::group* entry = user != nullptr ? getgrgid(group) : nullptr;
  if (entry == nullptr || std::string_view(entry->gr_name) != user->pw_name) {
    return false;
  }
  for (char** member = entry->gr_mem; *member != nullptr; ++member) {
    if (std::string_view(*member) != user->pw_name) {
      return false;
    }
  }
  return true;
}

bool foreign_owner(const struct stat& status) {
  return status.st_uid != 0 && status.st_uid != geteuid();
}

bool foreign_writers(const struct stat& status) {
  return (status.st_mode & S_IWOTH) != 0 ||
         ((status.st_mode & S_IWGRP) != 0 && status.st_gid != 0 && !private_group(status.st_gid));
}

void split(const std::string& path, std::deque<std::string>& in_front_of) {
  std::deque<std::string> parts;
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    if (slash > at) {
      parts.push_back(path.substr(at, slash - at));
    }
    at = slash + 1;
  }
  in_front_of.insert(in_front_of.begin(), parts.begin(), parts.end());
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

std::string Trust::this_library() {
  Dl_info info{};
  const auto* here = reinterpret_cast<const void*>(&Trust::this_library);
  return dladdr(here, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

Trust::Trust(const std::string& program) {
  char resolved[PATH_MAX];
  if (realpath(program.c_str(), resolved) != nullptr) {
    for (std::string folder = resolved; folder != "/";) {
      folder = folder_of(folder);
      program_folders_.insert(folder);
    }
  }
}

void Trust::refuse(std::string_view why) {
  refusals_.push_back(fmt::format("{}{}", subject_, why));
}

void Trust::check(std::string_view what, const std::string& path, bool sticky_is_safe) {
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0 || refused_.contains(path)) {
    return;
  }
  if (foreign_owner(status) && !program_folders_.contains(path)) {
    refused_.insert(path);
    refuse(fmt::format(
        "{} {} belongs to user {}, who is neither root nor you; {}", what, path, status.st_uid,
        geteuid() == 0 ? "if you trust it, fix it with: chown -h 0 " + shell_word(path)
                       : "if you trust it, put a copy into a folder of your own"));
  }
  if (S_ISLNK(status.st_mode)) {
    return;  // a link's mode means nothing
  }
  if (foreign_writers(status) && !(sticky_is_safe && (status.st_mode & S_ISVTX) != 0)) {
    refused_.insert(path);
    // A folder like /tmp is meant to be as it is.
    const bool fixable =
        (status.st_mode & S_ISVTX) == 0 && (geteuid() == 0 || status.st_uid == geteuid());
    refuse(fmt::format("{} {} can be written by others (mode {:o}, group {}); {}", what, path,
                       status.st_mode & 07777U, status.st_gid,
                       fixable ? "fix it with: chmod go-w " + shell_word(path)
                               : "put a copy into a folder of your own"));
  }
}

std::string Trust::follow(const std::string& path, std::string& last_folder) {
  std::deque<std::string> rest;
  split(path, rest);
  std::string at = "/";
  check("the folder", at, true);
  for (int links = 0; !rest.empty();) {
    last_folder = at;
    const std::string name = rest.front();
    rest.pop_front();
    if (name == ".") {
      continue;
    }
    if (name == "..") {
      at = folder_of(at);
      continue;
    }
    const std::string next = (at == "/" ? "" : at) + "/" + name;
    struct stat status{};
    if (lstat(next.c_str(), &status) != 0) {
      return "";
    }
    if (S_ISLNK(status.st_mode)) {
      char target[PATH_MAX];
      const ssize_t length = readlink(next.c_str(), target, sizeof(target));
      if (length <= 0 || ++links > 40) {
        return "";
      }
      check("the symbolic link", next, true);
      const std::string text(target, static_cast<std::size_t>(length));
      at = text.front() == '/' ? "/" : at;
      split(text, rest);
      continue;
    }
    if (S_ISDIR(status.st_mode) && !rest.empty()) {
      check("the folder", next, true);
    }
    at = next;
  }
  return at;
}

bool Trust::check_file(const std::string& path) {
  std::string folder;
  const std::string file = follow(path, folder);
  struct stat status{};
  if (file.empty() || stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return false;
  }
  check("the file", file, false);
  check("the folder", folder_of(file), false);
  return true;
}

bool Trust::check_folder(const std::string& path) {
  std::string parent;
  const std::string folder = follow(path, parent);
  if (folder.empty()) {
    check("the folder", parent, false);
    return false;
  }
  check("the folder", folder, false);
  return true;
}

bool Trust::check_own_folder(const std::string& path) {
  std::string parent;
  const std::string folder = follow(path, parent);
  folder.empty() ? check("the folder", parent, true) : check("the folder", folder, false);
  return !folder.empty();
}

}  // namespace tessera::plugin
