module;
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "plugin_template_texts.hpp"
module tessera.app.plugin_template;

import tessera.base;
import tessera.plugin;

namespace tessera::app {
namespace {

namespace fs = std::filesystem;

std::string with_name(std::string_view text, const std::string& name) {
  constexpr std::string_view mark = "@NAME@";
  std::string result;
  for (std::size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark)) {
    result.append(text.substr(0, at)).append(name);
    text.remove_prefix(at + mark.size());
  }
  return result.append(text);
}

}  // namespace

std::vector<std::string> template_kinds() {
  std::vector<std::string> kinds;
  for (const TemplateText& file : template_files) {
    if (kinds.empty() || kinds.back() != file.kind) {
      kinds.emplace_back(file.kind);
    }
  }
  return kinds;
}

std::vector<TemplateFile> plugin_template(const std::string& kind, const std::string& name) {
  const std::vector<std::string> kinds = template_kinds();
  if (std::ranges::find(kinds, kind) == kinds.end()) {
    const auto declared = plugin::declared_kinds();
    const bool known =
        std::ranges::any_of(declared, [&](const auto& other) { return other.name == kind; });
    fail_input(fmt::format("plugin new {}: {} '{}' (there are templates for: {}){}", name,
                           known ? "there is no template for the kind" : "there is no kind", kind,
                           join_words(kinds), did_you_mean(kind, kinds)));
  }
  std::vector<TemplateFile> files;
  for (const TemplateText& file : template_files) {
    if (file.kind == kind) {
      files.push_back({with_name(file.path, name), with_name(file.text, name)});
    }
  }
  return files;
}

void check_plugin_name(const std::string& kind, const std::string& name) {
  const auto capital = [](char c) { return c >= 'A' && c <= 'Z'; };
  const auto allowed = [&](char c) {
    return capital(c) || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  // The stamp holds 63 characters; two underscores are the compiler's.
  if (name.empty() || name.size() > 63 || !capital(name[0]) ||
      !std::ranges::all_of(name, allowed) || name.find("__") != std::string::npos) {
    fail_input(fmt::format(
        "plugin new {}: not a name for a class (expected a capital letter, then letters, digits or "
        "single '_', at most 63 in all); write, for example, MyStyle",
        name));
  }
  const plugin::Offer wanted{kind, name};
  for (const plugin::PluginFile& found : plugin::Host().list()) {
    if (found.stamp &&
        std::ranges::find(found.stamp->provides, wanted) != found.stamp->provides.end()) {
      fail_input(fmt::format("plugin new {}: there is a {} of this name already ({}); take another",
                             name, kind, found.file));
    }
  }
}

fs::path write_template(const std::vector<TemplateFile>& files, const fs::path& parent,
                        const std::string& name) {
  const fs::path folder = (parent / name).lexically_normal();
  std::error_code error;
  if (fs::exists(fs::symlink_status(folder, error))) {
    fail_input(
        fmt::format("plugin new {}: {} exists already and is left as it is; take another "
                    "name, or another --folder",
                    name, folder.string()));
  }
  try {
    NewFolder made(folder.string());
    for (const TemplateFile& file : files) {
      const std::string path = (fs::path(made.path()) / file.path).string();
      if (const std::string why = write_file(path, file.text); !why.empty()) {
        fail({.thing = (folder / file.path).string(), .wrong = "it cannot be written: " + why});
      }
    }
    made.complete();
  } catch (const Error& problem) {
    ErrorFields fields = problem.fields();
    fields.where = "plugin new " + name;
    throw Error(std::move(fields), problem.kind());
  }
  return folder;
}

}  // namespace tessera::app
