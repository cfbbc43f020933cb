module;
#include <string_view>
#include <utility>
module tessera.stores;

import tessera.base;

namespace tessera::stores {
namespace {

ErrorKind kind_of(StoreFailure failure) {
  switch (failure) {
    case StoreFailure::not_there:
    case StoreFailure::no_rights:
    case StoreFailure::wrong_address:
      return ErrorKind::input;
    case StoreFailure::cancelled:
      return ErrorKind::interrupted;
    case StoreFailure::temporary:
    case StoreFailure::changed:
    case StoreFailure::no_space:
    case StoreFailure::wrong_answer:
      break;
  }
  return ErrorKind::run;
}

}  // namespace

std::string_view word_of(StoreFailure failure) {
  switch (failure) {
    case StoreFailure::not_there:
      return "not there";
    case StoreFailure::no_rights:
      return "no rights";
    case StoreFailure::temporary:
      return "temporary";
    case StoreFailure::changed:
      return "changed";
    case StoreFailure::no_space:
      return "no space";
    case StoreFailure::wrong_address:
      return "wrong address";
    case StoreFailure::wrong_answer:
      return "wrong answer";
    case StoreFailure::cancelled:
      break;
  }
  return "cancelled";
}

StoreError::StoreError(StoreFailure failure, ErrorFields fields, double after)
    : Error(std::move(fields), kind_of(failure)), failure_(failure), after_(after) {}
StoreFailure StoreError::failure() const noexcept { return failure_; }
double StoreError::after() const noexcept { return after_; }

}  // namespace tessera::stores
