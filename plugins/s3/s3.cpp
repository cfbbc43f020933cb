// s3://bucket/path: what S3 and servers that speak its protocol keep.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

import tessera.base;
import tessera.plugin;
import tessera.stores;

#include "s3.hpp"

namespace s3 {

using namespace tessera::stores;

void refuse(StoreFailure failure, std::string wrong, std::string advice) {
  throw StoreError(failure, {.wrong = std::move(wrong), .advice = std::move(advice)});
}

namespace {

/// A name that is a part of a host's name, too.
bool is_bucket(std::string_view name) {
  constexpr std::size_t shortest = 3;
  constexpr std::size_t longest = 63;
  const auto end = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return name.size() >= shortest && name.size() <= longest && end(name.front()) &&
         end(name.back()) && name.find("..") == std::string_view::npos &&
         std::ranges::all_of(name, [&](char c) { return end(c) || c == '-' || c == '.'; });
}

class S3Scheme final : public StoreScheme {
 public:
  StorePlace open(const Address& address) const override {
    const std::string& rest = address.rest();
    const std::size_t slash = rest.find('/');
    const std::string bucket = rest.substr(0, slash);
    if (!is_bucket(bucket)) {
      refuse(StoreFailure::wrong_address, "it has no bucket of a right name",
             "write s3://BUCKET/NAME; a bucket has 3 to 63 small letters, digits, '-' and '.'");
    }
    std::string name = slash == std::string::npos ? "" : rest.substr(slash + 1);
    while (name.ends_with('/')) {
      name.pop_back();
    }
    return {open_bucket(bucket), std::move(name)};
  }
  std::string how_to_get_rights() const override {
    return "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or "
           "AWS_PROFILE "
           "to a profile of ~/.aws/credentials; keys of SSO, of roles and of the machine are not "
           "fetched: export them with 'aws configure export-credentials --format env'";
  }
};

}  // namespace
}  // namespace s3

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<tessera::stores::StoreScheme>("s3",
                                              [] { return std::make_unique<s3::S3Scheme>(); });
}
