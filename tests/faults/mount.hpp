// File systems that a test mounts: full disks, folders that are mounted in others.
#pragma once
#include <string>

namespace faults {

struct MountOptions {
  std::string at;         ///< a folder, made if it is missing
  std::string of = {};    ///< the folder that shows there; empty: a new tmpfs
  std::string size = {};  ///< of the tmpfs: "1m"
};

/// Seen by this process and its children only, until the object goes. Takes root.
class Mount {
 public:
  explicit Mount(const MountOptions& options);
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;
  ~Mount();
  bool mounted() const { return mounted_; }

 private:
  std::string folder_;
  bool mounted_ = false;
};

}  // namespace faults
