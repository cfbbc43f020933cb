export module tessera.app.commands:page;

import tessera.app.base;

// Pages in HTML, each a single file that needs no other.

export namespace tessera::app {

/// A part of a page: a heading, text in lines with aligned columns, an SVG picture.
struct PageSection {
  std::string title;
  std::string text = {};
  std::string picture = {};
};
std::string page_of(const std::string& title, const std::vector<PageSection>& sections);

}  // namespace tessera::app
