export module tessera.app.plan:search_report;

import tessera.app.base;
import :hardware;
import :search;

// What a search says: the best layouts, and why the others lose.

export namespace tessera::app {

/// The table of the best ten, and a sentence for each other layout.
std::string search_text(const SearchResult& result, const Hardware& hardware);
std::string search_json(const SearchResult& result, const Hardware& hardware);

}  // namespace tessera::app
