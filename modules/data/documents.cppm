export module tessera.data:documents;

import tessera.base;
import :data_file;
import :examples;
import :labelled;
import :record_forms;

export namespace tessera::data {

/// What is done with a document that has more tokens than a row holds.
enum class TooLong : std::uint8_t {
  error,
  skip,  // it is left out, and counted
  cut,   // its end is left out, and counted; a document of which nothing is trained is left out
};

/// What the records of a file are.
enum class RecordForm : std::uint8_t {
  document,    // a document each
  preference,  // two documents each, see ExampleMaker::make_preference
  labelled,    // a document each, with the name of its class
  tagged,      // a document each, with the names of the classes of its words
};

/// Options of reading documents.
struct DocumentOptions {
  std::int64_t longest = 0;  // tokens of a document
  TooLong too_long = TooLong::error;
  RecordForm form = RecordForm::document;
  bool skip_bad = false;   // records with faults are left out and counted; else they are errors
  RecordForms forms = {};  // of the records

  /// Documents of a record.
  std::int64_t of_record() const { return form == RecordForm::preference ? 2 : 1; }
};

/// The kind of a file's first record that has one; where bad records are an error, of the first
/// record. Nothing: there is no record, as who reads them will find. Errors (input): those of
/// DataFile; with file and line, what is wrong with a bad record.
std::optional<RecordKind> first_kind(const std::string& file, const DocumentOptions& options);

/// Sums over documents, for people.
struct DocumentCounts {
  std::int64_t tokens = 0;
  std::int64_t trained = 0;
  std::int64_t longest = 0;      // tokens of the longest one, before it was cut
  std::int64_t cut = 0;          // records
  std::int64_t left_out = 0;     // records: too long, or nothing trained is left of a document
  std::int64_t blank_lines = 0;  // which are not documents
  std::int64_t joined = 0;       // see Example::joined
  std::map<std::string, std::int64_t> dropped = {};  // contents, see Example::dropped
  std::map<std::string, std::int64_t> unread = {};   // records, by the member that nothing reads
  std::int64_t bad = 0;                              // records that were left out for a fault
  std::string first_bad = {};                        // "a.jsonl:3: it is not JSON"
};

/// The records of JSONL files as documents. They are read once when the object is made, to find
/// every fault and every length; later each is read and encoded when it is needed, so files need
/// not fit in memory: a document takes 24 bytes. Of preferences, documents 2 i and 2 i + 1 are the
/// chosen and the rejected answer of record i.
class Documents final : public LabelledRecords {
 public:
  /// Errors (input) with file and line, all at once: what is wrong with records (ExampleMaker), a
  /// line of more than 32 MiB, a record of another kind than its file's first one, a document that
  /// is too long, more than 10,000 different labels; there is no document; the file cannot be read.
  Documents(std::span<const std::string> files, std::shared_ptr<const ExampleMaker> maker,
            const DocumentOptions& options);
  ~Documents() override;

  std::int64_t size() const override;
  std::size_t files() const;
  /// Tokens of a document, and those of them that are trained.
  std::int64_t tokens(std::int64_t document) const;
  std::int64_t trained(std::int64_t document) const;
  std::string where(std::int64_t document) const override;
  /// Documents of a record; see DocumentOptions::of_record.
  std::int64_t of_record() const;
  const std::vector<std::string>& labels() const override;
  bool has_label(std::int64_t document, std::int64_t label) const override;
  /// The place of a labelled document's label among labels().
  std::int64_t label(std::int64_t document) const;
  /// The tokens of a tagged document, and the place of each one's label among labels(); -1: it has
  /// none. Error (input): as of read().
  std::pair<Example, std::vector<std::int64_t>> read_tagged(std::int64_t document) const;
  /// Error (input): the file has changed since the object was made.
  Example read(std::int64_t document) const;
  const DocumentCounts& counts() const;
  const ExampleMaker& maker() const;
  /// The hash of the files.
  std::string content_hash() const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace tessera::data
