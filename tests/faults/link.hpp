// Two machines that this one plays, with a network of their own each, and the link between them.
#pragma once
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace faults {

/// Takes root and the program `ip`. The networks go away with the object, and what runs in them
/// keeps its own.
class Link {
 public:
  Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link();
  bool made() const { return made_; }
  /// The words before a command that give it the network of machine 0 or 1.
  std::vector<std::string> launcher(std::size_t machine) const;
  std::string address(std::size_t machine) const;
  /// Nothing passes, and nobody is told.
  void cut() const;
  void mend() const;
  /// Not more than so many MB in a second pass from either machine to the other one.
  bool limit(int megabytes) const;

 private:
  bool run(std::size_t machine, const std::string& command) const;

  std::array<pid_t, 2> keepers_{};  // processes that the networks live as long as
  bool made_ = false;
};

}  // namespace faults
