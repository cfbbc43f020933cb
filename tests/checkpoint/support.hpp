// What the checkpoint's tests share.
#pragma once
#include <string>

#include "errors.hpp"
#include "folder.hpp"
#include "on_ranks.hpp"

namespace checkpoint_test {

using tessera::testing::contains;
using tessera::testing::Folder;
using tessera::testing::input_error;
using tessera::testing::on_ranks;
using tessera::testing::read_file;
using tessera::testing::run_error;

/// A safetensors file's bytes: the length, the header, `data` bytes of zeros.
std::string file_of(const std::string& header, std::size_t data);

}  // namespace checkpoint_test
