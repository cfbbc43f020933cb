export module tessera.data:packing;

import tessera.base;
import :documents;
import :rows;

export namespace tessera::data {

/// Which documents each row holds: row r has documents[begins[r]] to documents[begins[r + 1] - 1],
/// one after the other.
struct Packing {
  std::vector<std::int64_t> documents;
  std::vector<std::int64_t> begins;  // one more than there are rows

  std::int64_t rows() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  std::span<const std::int64_t> row(std::int64_t number) const;
};

/// Puts documents into rows with `room` positions. A row begins with the first document that is
/// left; then comes, as long as there is one, the longest of the next `look_ahead` documents that
/// fits (of equally long ones the first). `lengths`: positions that each document takes, in the
/// order in which they are taken; `documents` of the result are their places in it. Errors: a
/// document that takes more than the room, or nothing.
Packing pack(std::span<const std::int64_t> lengths, std::int64_t room,
             std::int64_t look_ahead = 1024);

/// Several whole documents in each row, with padding behind the last: documents [begin, end). A
/// document of n tokens takes n - 1 positions, as its last token is only predicted.
class PackedRows final : public RowSource {
 public:
  /// `order`: the seed of the order in which documents are taken; none: that of their numbers.
  /// `padding`: the token of inputs behind the last document.
  PackedRows(std::shared_ptr<const Documents> documents, std::int64_t begin, std::int64_t end,
             std::int64_t length, std::int64_t padding, std::optional<std::uint64_t> order);
  std::int64_t rows() const override { return packing_.rows(); }
  std::int64_t trained(std::int64_t row) const override;
  std::int64_t used(std::int64_t row) const override;
  std::string where(std::int64_t row) const override;
  std::vector<RowRecord> records(std::int64_t row) const override;
  std::vector<std::int64_t> document_begins(std::int64_t row) const override;
  std::vector<DocumentPlace> documents(std::int64_t row) const override;
  void read(std::int64_t row, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const override;

 private:
  std::shared_ptr<const Documents> documents_;
  std::int64_t length_;
  std::int64_t padding_;
  Packing packing_;  // with numbers of documents
};

}  // namespace tessera::data
