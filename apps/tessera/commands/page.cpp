module;
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>
module tessera.app.commands;

import tessera.app.base;
import :page;

namespace tessera::app {

std::string page_of(const std::string& title, const std::vector<PageSection>& sections) {
  std::string page = fmt::format(
      "<!doctype html>\n<html>\n<head>\n<meta charset=\"utf-8\">\n<title>{0}</title>\n<style>\n"
      "body {{ font-family: sans-serif; margin: 2em; }}\npre {{ font-size: 90%; }}\n"
      "svg {{ max-width: 100%; height: auto; }}\n</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
      escape_markup(title));
  for (const PageSection& section : sections) {
    page += fmt::format("<h2>{}</h2>\n", escape_markup(section.title));
    if (!section.text.empty()) {
      page += fmt::format("<pre>\n{}</pre>\n", escape_markup(section.text));
    }
    if (!section.picture.empty()) {
      // Within HTML, an SVG has no declaration.
      page += section.picture.substr(section.picture.find("<svg")) + "\n";
    }
  }
  return page + "</body>\n</html>\n";
}

}  // namespace tessera::app
