# Fuzz targets of what commands read besides the model: prompts, records, manifests, options, eval's data.
triphase_fuzz_library(fuzz_job
  "${root}/runtime/job/file_ops.cpp"
  "${root}/runtime/calibrate/sparsity_choice.cpp"
  "${root}/runtime/job/command_files.cpp"
  "${root}/runtime/job/line_fields.cpp"
  "${root}/runtime/job/locked_part.cpp"
  "${root}/runtime/job/manifest.cpp"
  "${root}/runtime/job/merge.cpp"
  "${root}/runtime/job/output_paths.cpp"
  "${root}/runtime/job/output_record.cpp"
  "${root}/runtime/job/prompt_file.cpp"
  "${root}/runtime/job/prompt_line.cpp"
  "${root}/runtime/job/record_check.cpp"
  "${root}/runtime/job/record_ledger.cpp"
  "${root}/runtime/job/record_scan.cpp"
  "${root}/runtime/job/record_window.cpp"
  "${root}/runtime/job/score_line.cpp"
  "${root}/runtime/job/seen_ids.cpp"
  "${root}/runtime/options/option_parser.cpp"
  "${root}/runtime/options/option_readers.cpp"
  "${root}/runtime/options/option_table.cpp"
  "${root}/runtime/options/option_text.cpp"
  "${root}/runtime/options/parse_run_options.cpp"
  "${root}/runtime/options/run_options.cpp"
  "${root}/runtime/options/tool_options.cpp"
  "${root}/runtime/build_info.cpp"
  "${root}/runtime/signals.cpp")
target_include_directories(fuzz_job PRIVATE "${CMAKE_BINARY_DIR}/runtime/generated")
target_compile_definitions(fuzz_job PRIVATE TRIPHASE_VERSION="fuzz" TRIPHASE_BUILD_TYPE="fuzz")
add_dependencies(fuzz_job triphase_build_commit)
target_link_libraries(fuzz_job PUBLIC fuzz_attention Boost::program_options)

triphase_fuzzer(fuzz_prompt_line fuzz_prompt_line.cpp fuzz_job)
triphase_fuzzer(fuzz_score_line fuzz_score_line.cpp fuzz_job)
triphase_fuzzer(fuzz_resume_scan fuzz_resume_scan.cpp fuzz_job)
triphase_fuzzer(fuzz_manifest fuzz_manifest.cpp fuzz_job)
triphase_fuzzer(fuzz_merge fuzz_merge.cpp fuzz_job)
triphase_fuzzer(fuzz_prompt_file fuzz_prompt_file.cpp fuzz_job)
triphase_fuzzer(fuzz_sparsity fuzz_sparsity.cpp fuzz_job)
triphase_fuzzer(fuzz_sizes fuzz_sizes.cpp fuzz_job)
triphase_fuzzer(fuzz_config_file fuzz_config_file.cpp fuzz_job)

triphase_fuzz_library(fuzz_eval "${root}/runtime/eval/eval_data.cpp")
target_link_libraries(fuzz_eval PUBLIC fuzz_base)
triphase_fuzzer(fuzz_eval_data fuzz_eval_data.cpp fuzz_eval)
