export module tessera.data:rows;

import tessera.base;
import :documents;
import :examples;
import :token_source;

export namespace tessera::data {

/// The target of a position whose loss does not count: padding, or a token that is not trained.
inline constexpr std::int64_t ignored_target = -100;

/// Positions of a row that a document takes: [begin, end).
struct DocumentPlace {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// A part of a row and where it comes from: a document, an answer, an image, or tokens of a text.
struct RowRecord {
  RecordPlace place = {};
  std::int64_t begin = 0;  // [begin, end) of the row's positions
  std::int64_t end = 0;
  std::int64_t trained = 0;    // of them
  bool is_document = false;    // all of it; it can be left out alone
  bool counts_tokens = false;  // see TokenRange::counts
};

/// Rows of batches, all of one length: inputs, and the token that follows on each as its target. A
/// row is one sequence, or several of that length, one after the other.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual std::int64_t rows() const = 0;
  /// Positions of a row whose loss counts.
  virtual std::int64_t trained(std::int64_t row) const = 0;
  /// Positions of a row that are not padding.
  virtual std::int64_t used(std::int64_t row) const = 0;
  /// Where a row comes from, for people: "chats.jsonl:17".
  virtual std::string where(std::int64_t row) const = 0;
  /// What the row consists of, without padding. Error (input): a file has changed.
  virtual std::vector<RowRecord> records(std::int64_t row) const = 0;
  /// Positions at which the documents of a row begin, of which none reads another; the first is 0.
  /// Padding behind several documents is one too.
  virtual std::vector<std::int64_t> document_begins(std::int64_t /*row*/) const { return {0}; }
  /// Where the documents of a row are, without padding. Of windows, the whole row.
  virtual std::vector<DocumentPlace> documents(std::int64_t row) const { return {{0, used(row)}}; }
  /// Fills both, which have the rows' length. Error (input): a file has changed.
  virtual void read(std::int64_t row, std::span<std::int64_t> inputs,
                    std::span<std::int64_t> targets) const = 0;
  /// Fills the pixels of a row that is an image (ImageForm). Error: rows are none.
  virtual void read_pixels(std::int64_t row, std::span<std::uint8_t> pixels) const;
};

/// Writes a document at the beginning of a row's inputs and targets, which have room for all of it.
void write_document(const Example& document, std::span<std::int64_t> inputs,
                    std::span<std::int64_t> targets);

/// Windows over tokens [begin, end): row w has the inputs [begin + w * length, ... + length), and
/// its targets are one token further.
class Windows final : public RowSource {
 public:
  Windows(std::shared_ptr<const TokenSource> tokens, std::int64_t begin, std::int64_t end,
          std::int64_t length);
  std::int64_t rows() const override;
  std::int64_t trained(std::int64_t row) const override;
  std::int64_t used(std::int64_t row) const override;
  std::string where(std::int64_t row) const override;
  std::vector<RowRecord> records(std::int64_t row) const override;
  void read(std::int64_t row, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const override;

 private:
  std::shared_ptr<const TokenSource> tokens_;
  std::int64_t begin_;
  std::int64_t end_;
  std::int64_t length_;
};

/// A document in each row, with padding behind it: documents [begin, end). Attention is causal, so
/// nothing of a document reads what is behind it.
class DocumentRows final : public RowSource {
 public:
  /// `padding`: the token of inputs behind a document.
  DocumentRows(std::shared_ptr<const Documents> documents, std::int64_t begin, std::int64_t end,
               std::int64_t length, std::int64_t padding);
  std::int64_t rows() const override;
  std::int64_t trained(std::int64_t row) const override;
  std::int64_t used(std::int64_t row) const override;
  std::string where(std::int64_t row) const override;
  std::vector<RowRecord> records(std::int64_t row) const override;
  void read(std::int64_t row, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const override;

 private:
  std::shared_ptr<const Documents> documents_;
  std::int64_t begin_;
  std::int64_t end_;
  std::int64_t length_;
  std::int64_t padding_;
};

/// The two documents of a preference in each row, the chosen one first: two sequences of `length`,
/// with padding behind each document. Preferences [begin, end).
class PreferenceRows final : public RowSource {
 public:
  PreferenceRows(std::shared_ptr<const Documents> documents, std::int64_t begin, std::int64_t end,
                 std::int64_t length, std::int64_t padding);
  std::int64_t rows() const override;
  std::int64_t trained(std::int64_t row) const override;
  std::int64_t used(std::int64_t row) const override;
  std::string where(std::int64_t row) const override;
  std::vector<RowRecord> records(std::int64_t row) const override;
  std::vector<DocumentPlace> documents(std::int64_t row) const override;
  void read(std::int64_t row, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const override;

 private:
  DocumentRows documents_;  // two for a row
  std::int64_t length_;
};

/// A labelled document in each row, with padding behind it: documents [begin, end). Its tokens all
/// have its class as their target, and padding has none.
class LabelledRows final : public RowSource {
 public:
  /// `classes`: the number of the class that each of the documents' labels is.
  LabelledRows(std::shared_ptr<const Documents> documents, std::int64_t begin, std::int64_t end,
               std::int64_t padding, std::vector<std::int64_t> classes);
  std::int64_t rows() const override;
  /// 1: a row has one label.
  std::int64_t trained(std::int64_t row) const override;
  std::int64_t used(std::int64_t row) const override;
  std::string where(std::int64_t row) const override;
  std::vector<RowRecord> records(std::int64_t row) const override;
  void read(std::int64_t row, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const override;

 private:
  std::shared_ptr<const Documents> documents_;
  std::int64_t begin_;
  std::int64_t end_;
  std::int64_t padding_;
  std::vector<std::int64_t> classes_;
};

/// A tagged document in each row, with padding behind it: documents [begin, end). The target of a
/// token is its class, where it has one.
class TaggedRows final : public RowSource {
 public:
  /// `classes`: the number of the class that each of the documents' labels is.
  TaggedRows(std::shared_ptr<const Documents> documents, std::int64_t begin, std::int64_t end,
             std::int64_t padding, std::vector<std::int64_t> classes);
  std::int64_t rows() const override;
  std::int64_t trained(std::int64_t row) const override;
  std::int64_t used(std::int64_t row) const override;
  std::string where(std::int64_t row) const override;
  std::vector<RowRecord> records(std::int64_t row) const override;
  void read(std::int64_t row, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const override;

 private:
  std::shared_ptr<const Documents> documents_;
  std::int64_t begin_;
  std::int64_t end_;
  std::int64_t padding_;
  std::vector<std::int64_t> classes_;
};

}  // namespace tessera::data
