export module tessera.data:encoded_text;

import tessera.base;
import tessera.tokenize;
import :data_file;
import :documents;
import :examples;
import :record_forms;
import :token_source;

export namespace tessera::data {

/// The tokens of texts, one text after the other. They are encoded once when the object is made, to
/// count them, and again where they are read, so texts need not fit in memory. Each text has what
/// the tokenizer adds to every text, and ends with the token that ends texts, where there is one.
/// Long texts are encoded in pieces of about 64 KiB, which end where lines end.
class EncodedText final : public TokenSource {
 public:
  /// A text in each file. Errors (input) with file and line, all at once: bytes that are not UTF-8.
  static EncodedText from_files(std::span<const std::string> files,
                                std::shared_ptr<const ExampleMaker> maker);
  /// A text in each record of JSONL files, as its member `text`. Errors (input) with file and line,
  /// all at once: see ExampleMaker::text_of; a line of more than 32 MiB; no record. `skip_bad`:
  /// records with faults are left out and counted.
  static EncodedText from_records(std::span<const std::string> files,
                                  std::shared_ptr<const ExampleMaker> maker, bool skip_bad = false,
                                  const RecordForms& forms = {});
  EncodedText(EncodedText&&) noexcept;
  ~EncodedText() override;

  std::int64_t size() const override;
  std::size_t files() const override;
  /// Of records: blank lines, records that were left out and the first of their faults.
  DocumentCounts counts() const;
  void read(std::int64_t begin, std::span<std::int64_t> out) const override;
  /// Of texts that are records, their lines; of others, the byte at which the piece begins.
  std::vector<TokenRange> places(std::int64_t begin, std::int64_t count) const override;
  void check_all() const override {}  // done when the object is made
  std::string content_hash() const override;

 private:
  struct State;
  explicit EncodedText(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tessera::data
