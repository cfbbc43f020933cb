// What the trainer's tests share.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "errors.hpp"
#include "folder.hpp"
#include "texts.hpp"

namespace trainer_test {

using tessera::testing::Folder;
using tessera::testing::has;
using tessera::testing::input_error;
using tessera::testing::read_file;

using Ids = std::vector<std::int64_t>;  // of tokens

struct Result {
  int code = -1;
  std::string out;
  std::string error;
};

/// Runs `tessera arguments` through a shell; `settings` are assignments in front of it.
Result run_program(const std::string& arguments, const std::string& settings = "");

}  // namespace trainer_test
