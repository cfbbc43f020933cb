// Files of other formats as records.
export module tessera.sources;

export import :record_source;  // RecordSource: the plugin kind; which one reads a file
