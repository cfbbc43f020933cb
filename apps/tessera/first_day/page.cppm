module tessera.app.first_day:page;

import tessera.base;
import tessera.app.base;
import :results;

// Results as a page.

namespace tessera::app::first_day {

/// Markdown: what deviates and what it probably means, then a section for each part.
std::string page_of(const Results& results);

}  // namespace tessera::app::first_day
