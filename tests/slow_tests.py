"""Tests that run only with `--slow`: combinations of parameters that others cover, and those of a list."""

import re
from collections import Counter, defaultdict
from itertools import combinations

from iobench import formats

FORMAT = re.compile(rf"(?:{'|'.join(formats.names())})(?![a-z_])")  # of a row, with or without options

# a file of tests, a class or a test, or its cases; `*` stands for any text
LISTED = """
# hostile files and injected faults: each guard has tests of its own, such as stream/test_bus_errors.py
test_faults.py
test_missing_library.py::test_with_the_core_alone_data_are_recognized_and_the_command_to_install_is_named
test_hostile_sources.py::test_memory_stays_bounded_in_this_process_and_its_children
test_sandboxed_sources.py::TestFormats::test_memory_of_the_process_that_reads_is_limited
formats/test_contract.py::*::test_flipped_bits_are_corrupt_or_give_samples_of_the_right_form[*:*
formats/test_contract.py::TestSmallPieces::test_threads_read_one_reader_at_once

# several steps in new interpreters, as one types them; each step has tests in one process
ranks/test_torchrun.py
ranks/test_trainers.py
plugin/test_plugin_loaders.py::test_the_package_s_own_tests_pass
test_other_tools.py::test_commands_work_beside_other_tools
test_notebook.py::test_the_example_shows_a_run_a_recommendation_and_a_watched_loop
test_add_remote.py::test_add_run_and_verify_as_typed
test_cli_run.py::test_json_is_all_there_is_on_stdout
test_cli_run.py::test_workers_under_spawn_start_from_the_command_line
test_cli_run.py::test_an_interrupt_prints_what_was_measured_and_leaves_no_process
test_live.py::test_on_a_terminal_the_view_goes_and_the_table_stays
test_objects.py::test_s3_end_to_end
test_objects.py::test_the_time_of_a_run_bounds_its_requests[True]
test_credentials.py::test_a_run_over_s3_leaves_no_credential_anywhere[--isolate]
test_objects.py::test_workers_and_processes_read_it_too
test_object_cache_run.py::test_hits_of_workers_are_counted
test_object_loaders.py::test_workers_read_from_s3_too[mosaic*
test_object_loaders.py::test_workers_read_from_s3_too[fsspec*
test_object_loaders.py::test_workers_read_from_s3_too[s3torchconnector*
test_object_loaders.py::test_every_loader_reads_lance_by_lance_s_client[dataloader:num_workers=1]
test_object_loaders.py::test_workers_read_from_s3_too[huggingface*
test_object_loaders.py::test_workers_read_from_s3_too[litdata*
test_loader_contract.py::TestHuggingFaceStreaming::*[parquet*
test_s3_how_to.py
test_compare_in_ci.py::test_the_workflow_fails_for_a_slower_head_and_writes_its_summary
formats/test_tokens.py::test_tokens_are_added_prepared_and_measured_as_one_types_it
formats/test_audio.py::test_a_folder_per_class_goes_through_every_step[.wav*
test_recommend.py::test_existing_files_are_added_and_a_recommendation_is_made_for_them
test_recommend.py::test_snippets_that_start_processes_run[dataloader:num_workers=1,*
test_ragged_sources.py::test_code_that_recommend_prints_runs[*num_workers=2]
test_recommend.py::test_a_format_that_there_was_no_time_to_write_is_skipped_with_the_reason
test_recommend_remote.py::test_an_answer_names_a_loader_and_the_default_and_writes_nothing
test_unscaled_images.py::test_prepare_run_and_verify_as_typed
test_report.py::test_a_browser_draws_every_chart_without_errors_and_without_scrolling[1200]

# signals and limits of a whole process, of which one of each kind stays
test_interrupts.py::test_where_ctrl_c_is_ignored_it_stays_ignored
test_interrupts.py::test_a_run_interrupted_while_verifying_content_saves_nothing
test_interrupts.py::test_an_import_that_aborts_on_an_interrupt_is_one_line
test_interrupts.py::test_an_interrupt_in_an_import_that_swallows_it_is_not_lost
test_isolated.py::test_it_ends_with_its_parent
test_isolated.py::test_a_fork_server_that_was_killed_is_replaced
test_resume_check.py::test_a_loader_that_hangs_is_killed
test_system_errors.py::test_what_the_system_lacks_is_one_line[processes-add*
test_system_errors.py::test_what_the_system_lacks_is_one_line[processes-diagnose*
test_system_errors.py::test_what_the_system_lacks_is_one_line[processes-run*isolate*
test_system_errors.py::test_what_the_system_lacks_is_one_line[folders-diagnose*
test_system_errors.py::test_what_the_system_lacks_is_one_line[folders-run*num_workers*
test_system_errors.py::test_what_the_system_lacks_is_one_line[folders-run*make_loader*
test_system_errors.py::test_full_shared_memory_is_one_line_that_says_how_to_enlarge_it[64k*
test_system_errors.py::test_full_shared_memory_is_one_line_that_says_how_to_enlarge_it[4k-diagnose*
test_system_errors.py::test_too_many_open_files_are_one_line_with_the_limit[12]
test_run_in_subprocess.py::test_time_in_which_both_were_suspended_is_no_silence
test_sampler.py::test_a_suspension_is_told_from_a_library_that_holds_the_lock[False]

# products of loader, format and order in real runs; the contract suites have each loader with each format
formats/test_everywhere.py::test_every_format_is_measured_with_every_default_loader[windows]
formats/test_everywhere.py::test_every_format_is_measured_with_every_default_loader[clips]
formats/test_everywhere.py::test_workers_of_a_format_that_must_not_be_forked_are_spawned
formats/test_everywhere.py::test_every_artifact_is_intact_also_after_it_was_touched[windows]
formats/test_everywhere.py::test_every_artifact_is_intact_also_after_it_was_touched[clips]
ranks/test_ranks.py::test_ranks_verify_and_time_the_dataset_together[sequential*
ranks/test_ranks.py::test_ranks_verify_and_time_the_dataset_together[block*
formats/test_contract.py::TestEveryVariant::*[hdf5:compression=gzip]
formats/test_contract.py::TestEveryVariant::*[hdf5:compression=lzf]
formats/test_contract.py::TestEveryVariant::*[hdf5:chunk_bytes=4096]
formats/test_contract.py::TestEveryVariant::*[parquet:codec=zstd]
formats/test_contract.py::TestEveryVariant::*[hdf5:chunk_bytes=4096,compression=lzf]
formats/test_webdataset.py::test_webdataset_reads_samples_of_several_lengths
formats/test_their_libraries.py::test_tar_shards_of_jpegs_with_labels
test_collate.py::test_every_loader_delivers_each_way_verified
test_collate.py::test_bfloat16_with_an_inner_axis_comes_from_every_loader
test_collate.py::test_rows_that_grain_packs_hold_every_sample_whole[*-fields0]
test_several_axes_run.py::test_every_loader_delivers_each_way_verified
test_token_batches.py::test_every_loader_delivers_the_same_batches_and_each_is_verified
test_unscaled_images.py::test_every_loader_delivers_the_files_as_each_decoder_reads_them[webdataset]
test_collate.py::test_workers_collate[words1]
test_ragged_run.py::test_every_case_is_verified_and_counts_real_bytes[sequential]
test_ragged_run.py::test_every_case_is_verified_and_counts_real_bytes[block]
test_loader_contract.py::TestDataLoaderOfBatchesOfOtherFormats
test_loader_contract.py::TestNativeOverOtherFormats
test_loader_contract.py::TestStreamOverOtherFormats
test_loader_contract.py::test_workers_return_every_sample_and_end[torchdata:fetch*
test_loader_contract.py::test_workers_return_every_sample_and_end[huggingface*
test_loader_contract.py::test_workers_return_every_sample_and_end[litdata*
test_loader_contract.py::test_workers_return_every_sample_and_end[mosaic*
test_loader_contract.py::test_workers_return_every_sample_and_end[dali*
test_loaders.py::test_workers_are_forked_after_the_format_s_library_is_imported
test_loaders.py::test_dataloader_works_with_spawned_workers[lmdb*
test_objects.py::test_a_run_verifies_and_counts[variants1*
test_objects.py::test_a_run_verifies_and_counts[variants2*
test_objects.py::test_faults_cost_their_retries_and_no_sample[1]
test_objects.py::test_faults_cost_their_retries_and_no_sample[2]
test_resume_check.py::test_stream_loses_nothing_over_ranks_1_2_3[sequential]
test_resume_check.py::test_stream_loses_nothing_over_ranks_1_2_3[block]
test_objects.py::test_a_resume_is_checked_at_an_address
stream/test_stream_faults.py::test_repeated_forks_during_an_epoch_do_no_harm
device/test_loaders_on_device.py::test_cases_in_processes_of_their_own_are_proved_and_measured_on_both_devices
device/test_ragged_on_device.py::test_a_run_verifies_them_on_the_device

# long data, and hosts and loops that are simulated
test_prepare.py::test_memory_does_not_grow_with_the_data
stream/test_stream_memory.py::test_the_memory_of_an_epoch_does_not_grow_with_it
stream/test_placements.py::test_the_end_of_a_row_of_two_gibibytes_is_copied
test_permutation.py::test_positions_and_pairs_of_neighbors_are_uniform[3]
test_permutation.py::test_positions_and_pairs_of_neighbors_are_uniform[5]
test_permutation.py::test_positions_and_pairs_of_neighbors_are_uniform[7]
test_diagnose.py::test_a_tensor_dataset_is_named_and_its_gain_is_measured
test_tuning.py::test_an_endless_loader_is_measured_by_its_first_batches[loader]
test_diagnose_checks.py::test_the_gain_of_the_remedy_is_measured_and_not_that_of_another
test_diagnose_checks.py::test_samples_that_take_long_without_workers
test_diagnose_checks.py::test_workers_that_cost_more_than_they_bring
test_diagnose_checks.py::test_samples_that_would_fit_in_memory_are_decoded_once
test_diagnose_checks.py::test_python_objects_that_workers_copy_by_reading_them[an array]
test_diagnose_checks.py::test_the_library_and_the_line_that_take_most_of_the_time_are_named[in the main*
test_diagnose_checks.py::test_the_time_of_the_garbage_collector_is_seen
test_diagnose_decoders.py::test_the_gain_of_a_faster_decoder_is_measured
test_diagnose_checks.py::test_a_diagnosis_without_a_batch_names_what_took_the_time
test_diagnose_checks.py::test_workers_that_are_late_now_and_then
test_diagnose_checks.py::test_tensors_of_workers_that_fill_the_table_of_open_files[1-False]
test_diagnose_checks.py::test_batches_in_flight_that_fill_the_shared_memory[200m-False]
test_studies.py::test_every_study_runs_and_has_a_verdict_on_each_claim[settings]
test_studies.py::test_every_study_runs_and_has_a_verdict_on_each_claim[small-batches]
test_studies.py::test_every_study_runs_and_has_a_verdict_on_each_claim[volume]
test_studies.py::test_measured_volumes_are_kept_if_the_memory_limit_fails
device/test_claims.py::test_gpu_memory_is_per_contender_and_grows_only_if_all_data_are_there
device/test_claims.py::test_the_claim_is_not_reproduced_if_the_data_do_not_stay_there
device/test_gpu_check.py::test_a_step_runs_in_a_child_process
"""

# tests of which a few cases stay, in turn: two, or all rows but those of formats, which other tests have
SHARED = """
formats/test_contract.py::TestEveryVariant::*[*:*
formats/test_contract.py::*::test_flipped_bits_are_corrupt_or_give_samples_of_the_right_form
formats/test_contract.py::TestSmallPieces
formats/test_first_rows.py
formats/test_lmdb.py::test_no_flipped_bit_in_the_tree_ends_the_process
stream/test_kept_between_epochs.py
stream/test_stream_faults.py
stream/test_stream_memory.py
stream/test_stream_ragged.py
test_add.py::test_existing_data_are_measured_in_place_and_never_touched
test_add_remote.py::test_rows_and_hashes_are_those_of_the_files
test_field_names.py
test_objects.py::test_rows_are_those_of_the_files
test_opening.py
test_verify.py::test_pages_of_zeros_are_reported_and_crash_nothing
"""


def lines(text):
    """Return the lines of a list, without its comments."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def matches(text):
    """Return a function that tells whether the lines of a list name a test, by its identifier."""
    patterns = "|".join(re.escape(line).replace(r"\*", ".*") for line in lines(text))
    return re.compile(rf"tests/(?:{patterns})(?:(?:::|\[).*)?").fullmatch


def left_out(items, slow=LISTED, shared=SHARED):
    """Return the tests that a run without `--slow` leaves out."""
    is_slow, is_shared = matches(slow), matches(shared)
    groups = defaultdict(list)
    for item in items:
        if not is_slow(item.nodeid) and hasattr(item, "callspec") and not item.get_closest_marker("gpu"):
            groups[item.nodeid.partition("[")[0], bool(is_shared(item.nodeid))].append(item)
    out, used = {item for item in items if is_slow(item.nodeid)}, defaultdict(Counter)
    for (function, is_one_of_many), cases in groups.items():
        stay = _few(cases, used[function.partition("::")[0]]) if is_one_of_many else _covering(cases)
        out.update(set(cases).difference(stay))
    return out


def _covering(cases):
    """Return cases that have each row of each `parametrize` once, in pairs that few of them share."""
    kept, used = [], Counter()
    missing = set().union(*map(_rows, cases))

    def gain(case):
        return len(_rows(case) & missing), -sum(used[pair] for pair in _pairs(case))

    while missing:
        kept.append(max(cases, key=gain))
        used.update(_pairs(kept[-1]))
        missing -= _rows(kept[-1])
    return kept


def _few(cases, used, count=2):
    """Return cases that have each row once but those of formats, of rows that the tests before had least."""
    kept, rest = [], [*cases]
    missing = {row for row in set().union(*map(_rows, cases)) if not FORMAT.match(row[1])}

    def gain(case):
        return len(_rows(case) & missing), -sum(used[row] for row in case.callspec._idlist)

    while rest and (missing or len(kept) < count):
        kept.append(max(rest, key=gain))
        rest.remove(kept[-1])
        used.update(kept[-1].callspec._idlist)
        missing -= _rows(kept[-1])
    return kept


def _rows(case):
    return set(enumerate(case.callspec._idlist))


def _pairs(case):
    return combinations(enumerate(case.callspec._idlist), 2)
