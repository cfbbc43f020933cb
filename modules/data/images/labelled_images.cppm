export module tessera.data:labelled_images;

import tessera.base;
import :data_file;
import :image;
import :labelled;
import :record_forms;
import :rows;

export namespace tessera::data {

/// How images become pixels of one size.
struct ImageForm {
  std::int64_t height = 0;
  std::int64_t width = 0;
  bool resizes = true;  // otherwise images must have the size
  ImageFilter filter = ImageFilter::bilinear;

  std::size_t bytes() const { return static_cast<std::size_t>(height * width * 3); }
};

/// The records of JSONL files, each with the path of an image (`image`, from the file's folder) and
/// the name of its class (`label`). Every image is decoded once when the object is made, to find
/// every fault; later each is read and decoded when it is needed.
class LabelledImages final : public LabelledRecords {
 public:
  /// Errors (input) with file and line, all at once: what is wrong with records; an image that
  /// cannot be read (decode_image) or has more than most_image_bytes, or another size where it must
  /// have one; there is no image. With `skip_bad` such records are left out and counted.
  LabelledImages(std::span<const std::string> files, const ImageForm& form, bool skip_bad,
                 const RecordForms& forms);
  ~LabelledImages() override;

  std::int64_t size() const override;
  std::string where(std::int64_t image) const override;
  const std::vector<std::string>& labels() const override;
  bool has_label(std::int64_t image, std::int64_t label) const override;
  /// The place of an image's label among labels().
  std::int64_t label(std::int64_t image) const;
  const ImageForm& form() const;
  /// The file of an image.
  const std::string& path(std::int64_t image) const;
  /// JSONL files.
  std::size_t files() const;
  std::int64_t blank_lines() const;
  /// Records that were left out for a fault, and the first fault.
  std::int64_t bad() const;
  const std::string& first_bad() const;
  /// Records by the member that nothing reads.
  const std::map<std::string, std::int64_t>& unread() const;
  /// Fills `pixels`, ImageForm::bytes: red, green and blue of each, row by row. Error (input): the
  /// image's file has changed since the object was made.
  void read(std::int64_t image, std::span<std::uint8_t> pixels) const;
  /// The hash of the files and of all images.
  std::string content_hash() const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

/// An image in each row: images [begin, end). A row has one input, the number of its image, and its
/// class as the target.
class ImageRows final : public RowSource {
 public:
  /// `classes`: the number of the class that each of the images' labels is.
  ImageRows(std::shared_ptr<const LabelledImages> images, std::int64_t begin, std::int64_t end,
            std::vector<std::int64_t> classes);
  std::int64_t rows() const override;
  std::int64_t trained(std::int64_t row) const override;
  std::int64_t used(std::int64_t row) const override;
  std::string where(std::int64_t row) const override;
  std::vector<RowRecord> records(std::int64_t row) const override;
  void read(std::int64_t row, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const override;
  void read_pixels(std::int64_t row, std::span<std::uint8_t> pixels) const override;

 private:
  std::shared_ptr<const LabelledImages> images_;
  std::int64_t begin_;
  std::int64_t end_;
  std::vector<std::int64_t> classes_;
};

}  // namespace tessera::data
