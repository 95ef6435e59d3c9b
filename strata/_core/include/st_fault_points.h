/* All fault points, each with what has happened when it is reached. */
#ifndef ST_FAULT_POINTS_H
#define ST_FAULT_POINTS_H

#define ST_FAULTS_OF_JOB(POINT) /* joining and leaving */                                                   \
    POINT(JOIN_BEFORE)        /* the process has a rank, and nothing of it */                               \
    POINT(JOIN_CLAIMED)       /* it has its lock, and has said nothing */                                   \
    POINT(JOIN_HALF)          /* pid and window are said, the state is not */                               \
    POINT(JOIN_AFTER)         /* it has joined, nobody was woken */                                         \
    POINT(ALL_JOINED)         /* all have joined, no window is reserved */                                  \
    POINT(LEFT_BEFORE)        /* its threads have ended, it has not left */                                 \
    POINT(LEFT_AFTER)         /* it has left, nobody was woken */                                           \
    POINT(RETURN_HALF)        /* it is about to come back after it left */

#define ST_FAULTS_OF_OPERATION(POINT) /* an operation */                                                    \
    POINT(LINE_HALF)          /* the line has the fingerprint, no payload */                                \
    POINT(MAILBOX_FILLED)     /* the payload is in the mailbox, the line has no epoch */                    \
    POINT(ABSTAIN_BEFORE)     /* it cannot take part, and has not said so */                                \
    POINT(ARRIVE_BEFORE)      /* the line is filled, its epoch is not */                                    \
    POINT(ARRIVE_AFTER)       /* the epoch is there, nobody was woken */                                    \
    POINT(ALL_ARRIVED)        /* all lines have been read */                                                \
    POINT(BEGIN_BEFORE)       /* it is about to touch memory of others */                                   \
    POINT(BEGIN_AFTER)        /* it has said so, and not looked for a failure */                            \
    POINT(UNIT_BEFORE)        /* a unit may run */                                                          \
    POINT(UNIT_AFTER)         /* a unit has run, its flag is down */                                        \
    POINT(FLAG_BEFORE)        /* the last unit of a flag has run, which is down */                          \
    POINT(FLAG_AFTER)         /* the flag is up, nobody was woken */                                        \
    POINT(LANE_PUT)           /* a descriptor of a plan is in a ring, without bell */                       \
    POINT(LANES_OVER)         /* the DMA thread is through, or has given up */                              \
    POINT(DONE_BEFORE)        /* the part is done, and not said */                                          \
    POINT(DONE_AFTER)         /* it is said, nobody was woken */                                            \
    POINT(ALL_DONE)           /* all have said so, it has not returned */

#define ST_FAULTS_OF_FAILURE(POINT) /* failure */                                                           \
    POINT(FAIL_BEFORE)        /* a failure was found, nothing is said */                                    \
    POINT(FAIL_CLAIMED)       /* this die is to write it down */                                            \
    POINT(FAIL_HALF)          /* it is written down in part */                                              \
    POINT(FAIL_AFTER)         /* it is declared, nobody was woken */                                        \
    POINT(ABORT_BEFORE)       /* it was heard of, the part is not given up */                               \
    POINT(ABORT_AFTER)        /* the part is given up, others may still write */

#define ST_FAULTS_OF_GROUPS(POINT) /* groups */                                                             \
    POINT(SLOT_BEFORE)        /* a group has memory, nobody can find it */                                  \
    POINT(SLOT_HALF)          /* the slot has a key, and is not valid */                                    \
    POINT(SLOT_AFTER)         /* the slot is valid, nobody was woken */                                     \
    POINT(SLOT_FOUND)         /* a member has found it, and does not count */                               \
    POINT(SLOT_ATTACHED)      /* it counts as a reader */                                                   \
    POINT(FOUND_BEFORE)       /* it has the memory, and has not said so */                                  \
    POINT(FOUND_AFTER)        /* it has said so */                                                          \
    POINT(SLOT_FORGOTTEN)     /* the slot leads nowhere, memory is still there */                           \
    POINT(LEAVE_BEFORE)       /* it lets go of a group, and has not said so */                              \
    POINT(LEAVE_AFTER)        /* it has said so */                                                          \
    POINT(SHRINK_BEFORE)      /* it is about to call for a smaller group */                                 \
    POINT(SHRINK_CALLED)      /* it has called, nobody was woken */                                         \
    POINT(SHRINK_AGREED)      /* it knows who calls, the new group is not asked for */

#define ST_FAULTS_OF_PAGES(POINT) /* pages and their log */                                                 \
    POINT(TABLE_RESERVED)     /* the table has memory, which nobody knows of */                             \
    POINT(FRAMES_TAKEN)       /* frames are mapped here, and free in the books */                           \
    POINT(WORD_AFTER)         /* a word of the table is written, others are not */                          \
    POINT(UNMAPPED)           /* addresses have nothing here, words still stand */                          \
    POINT(LOG_BEFORE)         /* the table has changed, the log has no record */                            \
    POINT(LOG_HALF)           /* a record is filled, its number is not there */                             \
    POINT(LOG_SEQ)            /* it has its number, the head has not moved */                               \
    POINT(LOG_HEAD)           /* the head has moved, nobody was rung */                                     \
    POINT(LOG_RUNG)           /* a peer was rung */                                                         \
    POINT(CURSOR_BEFORE)      /* records were followed, which is not said */                                \
    POINT(CURSOR_AFTER)       /* it is said, the owner was not rung */                                      \
    POINT(SHADOW_MAPPED)      /* a peer's pages are mapped, the shadow does not say so */                   \
    POINT(SHADOW_UNMAPPED)    /* a peer's page is gone, the shadow still has it */                          \
    POINT(QUARANTINED)        /* a frame is in quarantine, peers do not know */                             \
    POINT(RECLAIM_BEFORE)     /* a frame has left quarantine, and its memory */                             \
    POINT(RECLAIM_PUNCHED)    /* its memory is gone, it is not free */                                      \
    POINT(HANDLE_TAKEN)       /* a handle has frames */                                                     \
    POINT(VMM_MAPPED)         /* frames are below addresses, without access */                              \
    POINT(VMM_UNMAPPED)       /* addresses have nothing here, words still stand */                          \
    POINT(ACCESS_CHANGED)     /* access is another here, words say the old one */                           \
    POINT(FOREIGN_CLAIMED)    /* a file is offered, no word leads to it */                                  \
    POINT(FOREIGN_FOLLOWED)   /* a peer has come to the word of a file */                                   \
    POINT(FOREIGN_UNMAPPED)   /* the words are gone, the file is still offered */

#define ST_FAULTS_OF_EXPORTS(POINT) /* exports */                                                           \
    POINT(EXPORT_MAPPED)      /* an export has its range, and no slot */                                    \
    POINT(EXPORT_HALF)        /* the slot is filled, and not open */                                        \
    POINT(EXPORT_OPENED)      /* it is open */                                                              \
    POINT(EXPORT_CLOSING)     /* it takes no importers any more */                                          \
    POINT(EXPORT_ENDING)      /* it is looked at for what importers have */                                 \
    POINT(EXPORT_SCRUBBED)    /* a word of a dead importer is cleared, not logged */                        \
    POINT(EXPORT_UNMAPPED)    /* its range has no frames, its slot is taken */                              \
    POINT(IMPORT_BIT)         /* an importer has set its bit, and not looked again */                       \
    POINT(IMPORTED)           /* it has the words, or the offer was over */                                 \
    POINT(IMPORT_LEAVING)     /* it has nothing left, its bit is set */                                     \
    POINT(IMPORT_CLEARED)     /* its bit is clear, the exporter was not rung */

#define ST_FAULTS_OF_RINGS(POINT) /* rings */                                                               \
    POINT(ENGINE_OPENING)     /* a die has a DMA engine, nobody can find it */                              \
    POINT(RING_OPENED)        /* a ring takes descriptors, nobody can find it */                            \
    POINT(RING_CLOSED)        /* it takes none any more, and can be found */                                \
    POINT(RING_LOCKED)        /* a producer has the lock */                                                 \
    POINT(RING_TAKEN_OVER)    /* it has the lock of a dead one, and has not rung for it */                  \
    POINT(RING_FILLED)        /* descriptors are in slots, the tail has not moved */                        \
    POINT(RING_MOVED)         /* the tail has moved, the bell is silent */                                  \
    POINT(BELL_BEFORE)        /* the ring's bit is set, nobody was woken */                                 \
    POINT(RING_RUNG)          /* all is rung, the lock is held */                                           \
    POINT(ENGINE_ENDING)      /* finalize comes to the engine */                                            \
    POINT(ENGINE_STOPPED)     /* nobody finds its rings, the thread still runs */

#define ST_FAULTS_OF_ENGINE(POINT) /* the DMA thread */                                                     \
    POINT(ENGINE_FETCHED)     /* a descriptor was read */                                                   \
    POINT(ENGINE_GATE_OPEN)   /* a gate has found its flag */                                               \
    POINT(ENGINE_MOVED)       /* bytes are moved */                                                         \
    POINT(ENGINE_COUNTED)     /* a counter has counted, and is not through */                               \
    POINT(ENGINE_FLAG_BEFORE) /* a flag is about to be raised or poisoned */                                \
    POINT(ENGINE_FLAG_AFTER)  /* it is, nobody was woken */                                                 \
    POINT(ENGINE_FAILING)     /* a descriptor has failed, its event does not know */                        \
    POINT(ENGINE_NOTIFIED)    /* an event has counted, nobody was woken */                                  \
    POINT(ENGINE_LISTED)      /* a descriptor of a call is done, the ring does not say so */                \
    POINT(ENGINE_PASS_BEFORE) /* a descriptor is done, the head has not moved */                            \
    POINT(ENGINE_PASS_AFTER)  /* the head has moved, nobody was woken */                                    \
    POINT(HOST_FLAG_BEFORE)   /* a host is about to raise a flag */                                         \
    POINT(HOST_FLAG_AFTER)    /* it is up, nobody was woken */

#define ST_FAULTS_OF_MESSAGES(POINT) /* messages */                                                         \
    POINT(CHANNEL_BEFORE)     /* a channel is made, nobody can find it */                                   \
    POINT(CHANNEL_AFTER)      /* it can be found, nobody was woken */                                       \
    POINT(SEND_BEFORE)        /* a message is in its slot, without number */                                \
    POINT(SEND_AFTER)         /* it is sent, nobody was woken */                                            \
    POINT(RECV_MATCHED)       /* a message was read, its slot is taken */                                   \
    POINT(RECV_TAKEN)         /* the slot is free, the message has no answer */                             \
    POINT(RECV_CLAIMED)       /* a receiver is about to copy from the sender */                             \
    POINT(RECV_COPIED)        /* it has copied, and not said so */                                          \
    POINT(RECV_ACKED)         /* it has said so, nobody was woken */                                        \
    POINT(CAST_MADE)          /* a cast ring is made, nobody can find it */                                 \
    POINT(CAST_BEFORE)        /* a cast is in its slot, without number */                                   \
    POINT(CAST_AFTER)         /* it is there, nobody was woken */                                           \
    POINT(CAST_READ)          /* a member has read it, and not said so */                                   \
    POINT(CAST_TAKEN)         /* it has said so, nobody was woken */

#define ST_FAULTS_OF_BOARDS(POINT) /* boards */                                                             \
    POINT(BOARD_FORMATTED)    /* a board is made, nobody can find it */                                     \
    POINT(POST_WRITING)       /* a post's slot says that it is being written */                             \
    POINT(POST_FILLED)        /* the post is there, its epoch is not */                                     \
    POINT(POST_AFTER)         /* it is posted, nobody was woken */                                          \
    POINT(POSTS_THERE)        /* all have posted, or will not */                                            \
    POINT(MARK_BEFORE)        /* a round is read, nobody knows */                                           \
    POINT(MARK_AFTER)         /* a member was told so, others were not */                                   \
    POINT(DRAIN_BEFORE)       /* all have done a round, its slot still says it */                           \
    POINT(BOARD_FAILING)      /* it gives up, and has not said so */

#define ST_FAULTS_OF_OTHERS(POINT) /* graphs, streams, clocks */                                            \
    POINT(GRAPH_PUT)          /* a replay is in the ring, without bell */                                   \
    POINT(GRAPH_RUNG)         /* it is rung, the lock is held */                                            \
    POINT(GRAPH_DECLARED)     /* its failure is declared, flags are not poisoned */                         \
    POINT(GRAPH_CANCELLED)    /* its chain has ended, others may still write */                             \
    POINT(STREAM_BEFORE)      /* an item of a stream has ended, its flag is down */                         \
    POINT(STREAM_AFTER)       /* its flag is up, nobody was woken */                                        \
    POINT(ITEM_OVER)          /* an asynchronous operation has its status, and is not done */               \
    POINT(TIME_BEFORE)        /* a time is in its record, without number */                                 \
    POINT(TIME_TAKEN)         /* a time was read, its record is taken */

#define ST_FAULTS_OF_RETURN(POINT) /* a die that is started again */                                        \
    POINT(TAKEOVER_BEFORE)    /* it has its predecessor's liveness lock */                                  \
    POINT(TAKEOVER_BEGUN)     /* it is known, and has taken nothing over */                                 \
    POINT(TAKEOVER_PAGES)     /* the predecessor's pages have no access */                                  \
    POINT(TAKEOVER_TAKEN)     /* all is taken over, and not said */                                         \
    POINT(INVITE_WAITING)     /* it waits to be taken into a group */                                       \
    POINT(INVITE_CLAIMED)     /* all newcomers of a growth are claimed */                                   \
    POINT(INVITE_OFFERED)     /* one of them has been offered a place */                                    \
    POINT(INVITE_TAKEN)       /* it has taken it, and is not there yet */

#define ST_FAULT_POINTS(POINT)                                                                              \
    ST_FAULTS_OF_JOB(POINT)                                                                                 \
    ST_FAULTS_OF_OPERATION(POINT)                                                                           \
    ST_FAULTS_OF_FAILURE(POINT)                                                                             \
    ST_FAULTS_OF_GROUPS(POINT)                                                                              \
    ST_FAULTS_OF_PAGES(POINT)                                                                               \
    ST_FAULTS_OF_EXPORTS(POINT)                                                                             \
    ST_FAULTS_OF_RINGS(POINT)                                                                               \
    ST_FAULTS_OF_ENGINE(POINT)                                                                              \
    ST_FAULTS_OF_MESSAGES(POINT)                                                                            \
    ST_FAULTS_OF_BOARDS(POINT)                                                                              \
    ST_FAULTS_OF_OTHERS(POINT)                                                                              \
    ST_FAULTS_OF_RETURN(POINT)

#endif
