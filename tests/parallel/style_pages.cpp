// Pages that list the options of a style have what the style itself says of them.
#include <algorithm>
#include <string>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.parallel;

#include "support.hpp"

using namespace tessera;

namespace {

struct StylePage {
  std::string style;
  std::string page;
};

const std::vector<StylePage> pages = {{"ColwiseParallel", "shipped-styles.md"},
                                      {"RowwiseParallel", "shipped-styles.md"},
                                      {"SequenceParallel", "shipped-styles.md"},
                                      {"NoParallel", "shipped-styles.md"},
                                      {"PrepareModuleInput", "shipped-styles.md"},
                                      {"PrepareModuleOutput", "shipped-styles.md"},
                                      {"PrepareModuleInputOutput", "shipped-styles.md"},
                                      {"FSDP", "fully-sharded.md"},
                                      {"ContextParallel", "context-parallel.md"},
                                      {"Pipeline", "pipeline-parallel.md"},
                                      {"Offload", "offload.md"},
                                      {"Float8", "float8.md"},
                                      {"LoRA", "qlora.md"},
                                      {"QLoRA", "qlora.md"}};

/// What a style says of its options: a fresh one is made with none.
std::vector<OptionUse> options_of(const std::string& style) {
  parallel::Options none("{}", style);
  parallel_test::shipped_styles().find<parallel::ParallelStyle>(style)(none);
  return none.asked();
}

std::string table_of(const std::vector<OptionUse>& options) {
  std::string text = "| option | default | meaning |\n| --- | --- | --- |\n";
  for (const OptionUse& use : options) {
    text += "| `" + use.name + "` | " +
            (use.otherwise == "none" ? "none" : "`" + use.otherwise + "`") + " | " + use.doc +
            " |\n";
  }
  return text;
}

}  // namespace

TEST_CASE("the pages of the shipped styles have the options that the styles have") {
  for (const auto& [style, page] : pages) {
    const std::string expected = table_of(options_of(style));
    const std::string text =
        tessera::testing::read_file(std::string(TESSERA_SOURCE_FOLDER) + "/docs/" + page);
    INFO("docs/" << page << " must hold, for " << style << ":\n" << expected);
    CHECK(text.find(expected) != std::string::npos);
  }
}

TEST_CASE(
    "every option of a shipped style is documented, and every style with options has a page") {
  for (const std::string& style : parallel_test::shipped_styles().names("style")) {
    const std::vector<OptionUse> options = options_of(style);
    INFO(style);
    CHECK((std::ranges::find(pages, style, &StylePage::style) != pages.end()) == !options.empty());
    for (const OptionUse& use : options) {
      INFO(use.name);
      CHECK(use.doc.ends_with("."));
    }
  }
}
