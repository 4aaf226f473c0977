# Fuzz targets of tokenizer files.
file(GLOB tokenizer_sources CONFIGURE_DEPENDS "${root}/models/tokenizer/*.cpp")
triphase_fuzz_library(fuzz_tokenizer ${tokenizer_sources})
target_link_libraries(fuzz_tokenizer PUBLIC fuzz_model_files PkgConfig::SENTENCEPIECE PkgConfig::PCRE2
                                            PkgConfig::UTF8PROC)

triphase_fuzzer(fuzz_tokenizer_json fuzz_tokenizer_json.cpp fuzz_tokenizer)
triphase_fuzzer(fuzz_sentencepiece fuzz_sentencepiece.cpp fuzz_tokenizer)
triphase_fuzzer(fuzz_vocabulary fuzz_vocabulary.cpp fuzz_tokenizer)
triphase_fuzzer(fuzz_sidecar fuzz_sidecar.cpp fuzz_tokenizer)
