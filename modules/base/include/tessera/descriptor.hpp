// A file descriptor that is closed with its object.
#pragma once
#include <unistd.h>

#include <utility>

namespace tessera {

/// Owns an open descriptor, or none (a negative value, as open() returns where it fails).
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }

  int value() const { return value_; }
  bool is_open() const { return value_ >= 0; }
  /// Whether the system closed it without an error; it is closed either way.
  bool close() { return value_ < 0 || ::close(std::exchange(value_, -1)) == 0; }

 private:
  int value_;
};

}  // namespace tessera
