// Files with a secret (a key, a token): read only where no other user can have read or made them.
#pragma once
#include <cstddef>
#include <string>

namespace tessera {

struct SecretFileRules {
  std::size_t most = 4096;  // bytes
  bool links = false;       // the name may be a link
  bool of_root = false;     // the file may belong to root
};

struct SecretFile {
  std::string bytes = {};
  bool missing = false;      // nothing has this name; it is wrong, too
  std::string wrong = {};    // not empty: why it must not be used; begins with a verb
  bool open_to_all = false;  // what is wrong is its mode
  bool too_large = false;    // or its size; `bytes` has a part
};

/// A regular file of this user that nobody else may read or change. It does not wait at a pipe, and
/// what is checked is what is read.
SecretFile read_secret_file(const std::string& path, const SecretFileRules& rules = {});

}  // namespace tessera
