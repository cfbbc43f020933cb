#include "mount.hpp"

#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>

namespace faults {

Mount::Mount(const MountOptions& options) : folder_(options.at) {
  std::filesystem::create_directories(folder_);
  const std::string size = "size=" + options.size;
  mounted_ = geteuid() == 0 && unshare(CLONE_NEWNS) == 0 &&
             mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
             (options.of.empty()
                  ? mount("tmpfs", folder_.c_str(), "tmpfs", 0, size.c_str())
                  : mount(options.of.c_str(), folder_.c_str(), nullptr, MS_BIND, nullptr)) == 0;
}

Mount::~Mount() {
  if (mounted_) {
    umount2(folder_.c_str(), MNT_DETACH);
  }
}

}  // namespace faults
