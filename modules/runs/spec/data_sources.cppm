export module tessera.runs:data_sources;

import tessera.base;
import tessera.data;
import :spec;

// The sources that the section [data] names.

export namespace tessera::runs {

/// Files of one kind, as they are named.
struct SourceConfig {
  enum class Kind : std::uint8_t { text, jsonl, tokens };
  Kind kind = Kind::text;
  std::vector<std::string> paths = {};
  double weight = 1;
  std::string key = {};  // "data.text"
  data::RecordForms forms = {};
};

/// data.text, data.jsonl, data.tokens or the tables of data.sources. Errors (input): a table has
/// not exactly one of text, jsonl and tokens, or another key; columns that RecordForms refuses.
std::vector<SourceConfig> data_sources(const RunSpec& config);

/// The files of data.validation_files, by their names: *.npy, records (*.jsonl, also compressed,
/// and files that a source reads), and others as text.
std::vector<SourceConfig> validation_sources(const RunSpec& config);

}  // namespace tessera::runs
