#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/secret_file.hpp>
#include <utility>
#include <vector>

import tessera.base;
import tessera.stores;

#include "s3.hpp"

namespace s3 {
namespace {

using namespace tessera;
using namespace tessera::stores;
using Section = std::vector<std::pair<std::string, std::string>>;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blank = " \t\r";
  const std::size_t first = text.find_first_not_of(blank);
  return first == std::string_view::npos
             ? std::string_view()
             : text.substr(first, text.find_last_not_of(blank) - first + 1);
}

std::string value_of(const std::optional<Section>& section, std::string_view name) {
  if (section) {
    for (const auto& [key, value] : *section) {
      if (key == name) {
        return value;
      }
    }
  }
  return "";
}

/// A file with keys; nothing where there is none.
std::optional<std::string> read_file(const char* variable, const char* usual) {
  const std::optional<std::string> named = environment_variable(variable);
  const std::optional<std::string> home = environment_variable("HOME");
  if (!named && !home) {
    return std::nullopt;
  }
  const std::string path = named ? *named : *home + usual;
  constexpr std::size_t largest = std::size_t{1} << 20;
  SecretFile file = read_secret_file(path, {.most = largest, .links = true, .of_root = true});
  if (file.missing && !named) {
    return std::nullopt;
  }
  if (!file.wrong.empty()) {
    refuse(StoreFailure::no_rights, fmt::format("{} {}", path, file.wrong),
           file.open_to_all ? fmt::format("chmod 600 {}", path) : "");
  }
  return std::move(file.bytes);
}

bool is_header_text(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > 0x20 && c < 0x7f; });
}

/// Error: the keys have characters that no header may have.
Keys checked(Keys keys) {
  if (!is_header_text(keys.key) || !is_header_text(keys.secret) || !is_header_text(keys.token)) {
    refuse(
        StoreFailure::no_rights,
        fmt::format("the keys of {} have blanks or other characters that no key has", keys.from));
  }
  return keys;
}

std::optional<Keys> keys_of_environment() {
  const auto key = environment_variable("AWS_ACCESS_KEY_ID");
  const auto secret = environment_variable("AWS_SECRET_ACCESS_KEY");
  if (!key && !secret) {
    return std::nullopt;
  }
  if (!key || !secret) {
    refuse(StoreFailure::no_rights,
           fmt::format("{} is set, but not {}", key ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
                       key ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID"));
  }
  return Keys{*key, *secret, environment_variable("AWS_SESSION_TOKEN").value_or(""),
              "AWS_ACCESS_KEY_ID"};
}

std::optional<Keys> keys_of(const std::optional<Section>& section, const std::string& from) {
  const std::string key = value_of(section, "aws_access_key_id");
  const std::string secret = value_of(section, "aws_secret_access_key");
  if (key.empty() && secret.empty()) {
    return std::nullopt;
  }
  if (key.empty() || secret.empty()) {
    refuse(StoreFailure::no_rights,
           fmt::format("{} has {}, but not {}", from,
                       key.empty() ? "aws_secret_access_key" : "aws_access_key_id",
                       key.empty() ? "aws_access_key_id" : "aws_secret_access_key"));
  }
  return Keys{key, secret, value_of(section, "aws_session_token"), from};
}

/// Error: keys are to be fetched in a way that this plugin does not have.
void refuse_other_ways(const std::optional<Section>& section, const std::string& from) {
  constexpr std::array<std::string_view, 7> ways = {
      "sso_session",       "sso_start_url", "role_arn",          "web_identity_token_file",
      "credential_source", "login_session", "credential_process"};
  for (const std::string_view way : ways) {
    if (!value_of(section, way).empty()) {
      refuse(StoreFailure::no_rights, fmt::format("{} has {}, which is not supported", from, way),
             "export keys with 'aws configure export-credentials --format env'");
    }
  }
}

void refuse_other_variables() {
  constexpr std::array<const char*, 4> variables = {"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN",
                                                    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                                                    "AWS_CONTAINER_CREDENTIALS_FULL_URI"};
  for (const char* variable : variables) {
    if (environment_variable(variable)) {
      refuse(StoreFailure::no_rights,
             fmt::format("{} is set, and keys that it leads to are not fetched", variable),
             "export keys with 'aws configure export-credentials --format env'");
    }
  }
}

void refuse_other_endpoints(const std::optional<Section>& section, const std::string& from) {
  for (const char* variable : {"AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT"}) {
    if (environment_variable(variable).value_or("false") == "true") {
      refuse(StoreFailure::wrong_address, fmt::format("{} is not supported", variable),
             "name the server with AWS_ENDPOINT_URL_S3");
    }
  }
  if (!value_of(section, "services").empty()) {
    refuse(StoreFailure::wrong_address,
           fmt::format("{} has services, which is not supported", from),
           "name the server with AWS_ENDPOINT_URL_S3");
  }
}

std::string endpoint_of(const std::optional<Section>& section) {
  std::string text;
  if (environment_variable("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").value_or("") == "true") {
    return "";
  }
  for (const char* variable : {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}) {
    if (text.empty()) {
      text = environment_variable(variable).value_or("");
    }
  }
  if (text.empty()) {
    text = value_of(section, "endpoint_url");
  }
  while (text.ends_with('/')) {
    text.pop_back();
  }
  if (!text.empty() && (!http::server_of(text) || text.find_first_of("?#") != std::string::npos)) {
    refuse(StoreFailure::wrong_address, "the endpoint is no server of HTTP",
           "set AWS_ENDPOINT_URL_S3 to an address such as https://storage.example.org");
  }
  return text;
}

std::string region_of(const std::optional<Section>& section) {
  std::string region;
  for (const char* variable : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (region.empty()) {
      region = environment_variable(variable).value_or("");
    }
  }
  if (region.empty()) {
    region = value_of(section, "region");
  }
  if (region.empty()) {
    region = "us-east-1";
  }
  constexpr std::size_t longest = 64;
  if (region.size() > longest || !std::ranges::all_of(region, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '_';
      })) {
    refuse(StoreFailure::wrong_address, "the region has characters that no region has",
           "set AWS_REGION");
  }
  return region;
}

}  // namespace

std::optional<Section> section_of(std::string_view text, std::string_view section) {
  std::optional<Section> found;
  bool inside = false;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::string_view words = trimmed(line);
    if (words.empty() || words.front() == '#' || words.front() == ';') {
      continue;
    }
    if (words.front() == '[') {
      const std::size_t close = words.find(']');
      const std::string_view name = close == std::string_view::npos
                                        ? std::string_view()
                                        : trimmed(words.substr(1, close - 1));
      // "profile  x" is the same as "profile x".
      const std::size_t blank = name.find_first_of(" \t");
      const std::string plain =
          blank == std::string_view::npos
              ? std::string(name)
              : fmt::format("{} {}", name.substr(0, blank), trimmed(name.substr(blank)));
      inside = plain == section;
      if (inside && !found) {
        found.emplace();
      }
      continue;
    }
    const std::size_t equals = words.find('=');
    if (!inside || line.front() == ' ' || line.front() == '\t' ||
        equals == std::string_view::npos) {
      continue;
    }
    std::string_view value = trimmed(words.substr(equals + 1));
    const std::size_t comment = std::min(value.find(" #"), value.find(" ;"));
    value = trimmed(value.substr(0, comment));
    found->emplace_back(trimmed(words.substr(0, equals)), value);
  }
  return found;
}

Account read_account() {
  const std::optional<std::string> named = environment_variable("AWS_PROFILE");
  const std::string profile =
      named ? *named : environment_variable("AWS_DEFAULT_PROFILE").value_or("default");
  const auto credentials = read_file("AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials");
  const auto config = read_file("AWS_CONFIG_FILE", "/.aws/config");
  const auto of_credentials = section_of(credentials.value_or(""), profile);
  auto of_config = section_of(config.value_or(""), "profile " + profile);
  if (!of_config && profile == "default") {
    of_config = section_of(config.value_or(""), profile);
  }
  const std::string shown = fmt::format("profile '{}'", profile);
  if (named && !of_credentials && !of_config) {
    refuse(StoreFailure::no_rights,
           fmt::format("AWS_PROFILE names {}, which is neither in ~/.aws/credentials nor in "
                       "~/.aws/config",
                       shown));
  }
  refuse_other_endpoints(of_config, shown);
  Account account;
  account.service = {.endpoint = endpoint_of(of_config), .region = region_of(of_config)};
  std::optional<Keys> keys = keys_of_environment();
  if (!keys) {
    keys = keys_of(of_credentials, shown);
  }
  if (!keys) {
    keys = keys_of(of_config, shown);
  }
  if (!keys) {
    refuse_other_ways(of_credentials, shown);
    refuse_other_ways(of_config, shown);
    refuse_other_variables();
  }
  account.keys = checked(std::move(keys).value_or(Keys{}));
  return account;
}

}  // namespace s3
