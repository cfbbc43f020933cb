// Families of models, the plugin kind "model": config keys, sizes, building on the meta device, and
// Hugging Face's format.
export module tessera.models;

export import :values;          // ModelKey, ModelValues, ModelSizes: a model's sizes by name
export import :hub_config;      // HubConfig: a config.json, read key by key
export import :gguf_form;       // GgufForm: what GGUF files call the fields of a family
export import :family;          // ModelFamily, and the families by name
export import :decoder_family;  // DecoderFamily: families of decoders by a table
export import :family_file;     // families of decoders as files
